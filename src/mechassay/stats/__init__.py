"""Intervals, bounds, permutation tests: statistics that know nothing of models."""
