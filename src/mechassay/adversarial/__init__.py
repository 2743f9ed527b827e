"""Adversarial evaluation of circuits: the high percentiles of a divergence,
and what a sample of it supports.
"""
