"""Runs: training a recipe into a run folder, and evaluating and using the trained model."""
