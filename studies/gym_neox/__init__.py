"""How gym-neox was trained, and when it learned its tasks."""
