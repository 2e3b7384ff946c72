"""Where learning starts, what is learned next, and where perfect recovery begins.

growth: the growth map. weak: α_c = 1/λ_max, and its derivative. branch, crossing: the fixed point
at learned directions, the root of log α λ_max and its derivative. scan: where it lies; following:
the same where posteriors are costly. stairs: one step after the other.
recovery: perfect recovery. edges, transitions: first order. search: the parameter that a threshold
asks for.
"""
