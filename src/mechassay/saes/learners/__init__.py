"""What an SAE of each architecture has while it is trained, and how it codes a batch."""
