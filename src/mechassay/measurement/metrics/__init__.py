"""The metrics as formulas on arrays: published and repaired definitions, and how often they err."""
