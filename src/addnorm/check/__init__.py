"""The check: all valid combinations of parts, compared with plain float64 reference definitions."""
