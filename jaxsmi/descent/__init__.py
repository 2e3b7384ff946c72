"""Gradient descent on data.

options: `Gradient`, `Monitor`, `Stream`. loop: the problem `Descent`, on the library's loop.
training: `train`. overlaps: (M, Q) of a user, validated. analysis: when each index is learned,
means over runs. baselines: ridge regression, the nuclear norm.
"""

from jaxsmi.descent import baselines

__all__ = ["baselines"]
