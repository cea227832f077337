"""Tasks: one file each, which everything else consults."""
