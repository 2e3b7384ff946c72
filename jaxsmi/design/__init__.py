"""How inputs turn a signal into fields: shapes, sizes, drawing of inputs, and the two products.

base: the interfaces. designs: rows W, symmetric and rectangular matrices. tokens: inputs around
fixed directions. blocks: inputs in blocks of samples, and the products X Wᵀ and Gᵀ X.
"""
