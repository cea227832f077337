"""Recipes: read, changed, checked, described by a schema."""
