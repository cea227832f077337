"""Rewriting a run: swapped parts, pruned or quantised weights, and what that costs."""
