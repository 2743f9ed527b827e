"""Adversarial evaluation of circuits: high percentiles of a divergence, and what a sample shows."""
