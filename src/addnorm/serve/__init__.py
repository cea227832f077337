"""Serving: many requests at once, answered by one model."""
