"""What runs models for the metrics: a gauge a file, which hands arrays to its formula."""
