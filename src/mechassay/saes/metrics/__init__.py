"""Metrics of dictionaries: formula and gauge, one metric a file."""
