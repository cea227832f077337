"""Structured pruning: removes heads, feed-forward rows and layers, which leaves a smaller model."""
