"""Looking at a model from outside: what it attends to, and where."""
