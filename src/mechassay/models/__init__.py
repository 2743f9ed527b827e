"""Models: loading them, taking their forward pass apart, running circuits in them."""
