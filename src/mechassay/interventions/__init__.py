"""Interventions on parts of a forward pass: sites, what is done there, and what it changes."""
