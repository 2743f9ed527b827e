"""Finding circuits: runs of methods on models and tasks, their pages and drawings."""
