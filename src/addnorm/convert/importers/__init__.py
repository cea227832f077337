"""Importing models from other formats."""
