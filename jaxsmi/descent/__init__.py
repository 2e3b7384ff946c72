"""Gradient descent on data.

options: `Gradient` and `Monitor`. loop: the problem `Descent`, on the library's loop. fit:
validation of model, data and state. stream: endless fresh samples. training: `train`. order: when
each index is learned. averaging: means over runs. baselines: ridge regression, the nuclear norm.
"""

from jaxsmi.descent import baselines

__all__ = ["baselines"]
