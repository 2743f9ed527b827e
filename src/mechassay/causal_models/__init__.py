"""Causal models of tasks, one task a file."""
