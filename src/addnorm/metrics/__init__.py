"""Metrics: predictions and references in, numbers out."""
