"""Gym tasks: which linear features cause what a language model says of a sentence."""
