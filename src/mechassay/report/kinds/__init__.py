"""What a kind of record adds to the page that any record has: its figures and reading terms."""
