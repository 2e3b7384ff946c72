"""Message passing on data, and its asymptotics: state evolution and the free entropy.

message_passing: `gamp`, by the steps of iteration, which calibrates and damps; of other learners by
learner_passing. spectral: the estimator that a run starts from, spectral_theory: what
it knows. order_map: the one state-evolution map, evolution: its fixed points.
"""
