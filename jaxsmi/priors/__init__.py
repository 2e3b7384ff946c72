"""Priors on the signal: what is known of the weights before any label is seen.

iid.py holds the priors of the index family (Gaussian, Rademacher, Bernoulli–Gauss): partition function, posterior mean
and covariance, and the input side of state evolution.
"""

from jaxsmi.priors.iid import AbstractPrior, BernoulliGauss, Gaussian, Rademacher

__all__ = ["AbstractPrior", "BernoulliGauss", "Gaussian", "Rademacher"]
