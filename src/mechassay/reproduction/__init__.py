"""Reproduction: the numbers that papers print, beside ours, and what the comparison is worth."""
