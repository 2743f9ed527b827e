"""How sure the numbers of a method are over training pairs, and whether stable edges do better."""
