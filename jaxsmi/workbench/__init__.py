"""Results in files and pictures, orders of learning, sweeps."""
