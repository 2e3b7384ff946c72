"""Thresholds: weak recovery, the staircase of learning, first-order transitions, recovery.

weak: the growth map and α_c = 1/λ_max. branch: the fixed point with some directions learned, and
the scan along it. root: the root of log α λ_max, and its derivative. stairs: `staircase`.
transitions: `first_order` and `recovery_threshold`. one_index: the curve of all fixed points of one
index, α = Q̂/response(Q), from which `first_order` reads them. hysteresis: both branches of several
indices, and bisections of their ends. search: `search_threshold`.
"""
