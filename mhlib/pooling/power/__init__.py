"""Generalized means: one exponent between the mean and the maximum."""
