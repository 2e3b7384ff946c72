"""Gradient descent on data.

options: `Gradient` and `Monitor`. loop: optimisers on the common driver. fit: checks that model,
data and state fit together. stream: endless fresh samples. training: `train`. order: when each
index is learned. averaging: means over runs. baselines: ridge regression and the nuclear norm.
"""

from jaxsmi.descent import baselines

__all__ = ["baselines"]
