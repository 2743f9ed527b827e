"""Runs: jobs of many cells, kept in a folder, resumed where they stopped."""
