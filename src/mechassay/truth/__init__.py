"""Ground truth: small transformers whose circuit is known, to test what finds circuits."""
