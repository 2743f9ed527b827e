"""What any package has: registries, files, displays, checkpoints."""
