"""Tasks: each file says all that is true of one, and everything else asks it."""
