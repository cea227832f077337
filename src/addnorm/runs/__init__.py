"""Runs: from a recipe to a trained model in a folder, its scores, and its use."""
