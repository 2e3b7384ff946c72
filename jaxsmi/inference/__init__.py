"""Message passing on data, and its asymptotics: state evolution and the free entropy.

iteration: the equations of one GAMP step. message_passing: `gamp`, its starts. calibration: A, b
and V brought to the data. devices: samples spread over a mesh. overlap_map: the one state-evolution
map. evolution: its fixed points and their derivatives. inversion: those of matrix models.
potential: Φ. spectral_theory: the overlap of the optimal spectral estimator.
"""
