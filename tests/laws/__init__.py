"""What the laws of the house count, by subject; tests/house.py holds them against their budgets."""
