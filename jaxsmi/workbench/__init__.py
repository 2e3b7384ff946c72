"""Results in files and pictures, costs, sweeps."""
