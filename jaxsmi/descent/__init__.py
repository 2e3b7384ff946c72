"""Gradient descent on data: the loop, training, the order of learning, averaging, convex
baselines."""
