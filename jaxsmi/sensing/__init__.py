"""How a signal becomes fields, and back: `forward` and `adjoint`, exactly transposes of each other.

base: the declared face. index, symmetric, rectangular: the three ways to see a signal.
blocks: inputs in blocks of samples. passes: the two products, each one pass over many rows.
"""
