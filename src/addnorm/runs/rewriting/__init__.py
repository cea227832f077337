"""Rewriting a run: swapped parts, pruned or quantised weights, and their costs."""
