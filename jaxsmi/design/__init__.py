"""How inputs turn a signal into fields: shapes, sizes, drawing of inputs, and the two products.

designs: the interfaces; rows W, symmetric and rectangular matrices. products: laws of inputs,
blocks of samples, and the products X Wᵀ and Gᵀ X. tokens: inputs around fixed directions.
"""
