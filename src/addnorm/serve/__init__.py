"""Serving: one model answers many requests at once, over HTTP or from a file."""
