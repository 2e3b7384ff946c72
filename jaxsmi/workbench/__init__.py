"""Results in files and pictures, orders of learning, sweeps.

storage: files and provenance. plotting: figures. rows: the grid of a sweep and its rows; sweeps:
`smi.sweep`, which solves them. order: `smi.learning_order`. No equations live here.
"""
