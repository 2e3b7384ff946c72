"""Message passing on data, and its asymptotics: state evolution and the free entropy.

message_passing: `gamp`; gamp_starts, gamp_step, gamp_ends: its starts, its step, and the best of
several ends; corrections: calibration and damping at finite dimension; learner_passing: other
learners in it. spectral: the estimator that a run starts from,
spectral_theory: its limit. evolution: `state_evolution`, the fixed points of a map: order_map of
Bayes, learner_map of other learners (by label_averages), matrix_map of a matrix; learner_search:
the best numbers of a learner.
"""
