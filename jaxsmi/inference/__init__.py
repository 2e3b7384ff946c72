"""Message passing on data, and its asymptotics: state evolution and the free entropy.

iteration: the equations of one GAMP step. message_passing: `gamp`. starts: where it starts. pace:
its damping. calibration: A, b, V and the teacher's norm by the data. observations: the data of a
run, and the devices that they lie on. continuation: limits of vanishing noise.
overlap_map: the one state-evolution map. evolution: its fixed points and their derivatives.
inversion: those of matrix models. learner_map, learner_evolution, branches, learner_search: theory
of learners other than Bayes, learner_passing: their message passing; matrix_learner: both of a
learner of one matrix. potential: Φ. spectral: the optimal spectral estimator; of it,
spectral_vectors: its eigenvectors, spectral_outlier: where theory puts them, spectral_theory: the
overlap.
"""
