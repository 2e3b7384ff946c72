"""Gradient descent on data.

task: the loss of a student, batches, when to stop. loop: optimisers on the one driver. student: how
weights start, and what must fit together. stream: endless fresh samples. training: `train`. order:
when each index is learned. averaging: means over runs. baselines: ridge regression and the nuclear
norm.
"""

from jaxsmi.descent import baselines

__all__ = ["baselines"]
