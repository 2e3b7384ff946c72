"""Thresholds: weak recovery, the staircase of learning, first-order transitions, recovery.

growth: the growth map. weak: α_c = 1/λ_max, and its derivative. branch: the fixed point at learned
directions. scan: a start for the root of log α λ_max. root: the root and its derivative. stairs:
one step after the other. recovery: perfect recovery. edges, transitions: first order. search: the
parameter that a threshold asks for.
"""
