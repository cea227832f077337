"""Structured pruning: heads, feed-forward rows and layers leave, and a smaller model stays."""
