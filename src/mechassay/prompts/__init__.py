"""Prompts: texts, pairs of them, and the token ids that models read."""
