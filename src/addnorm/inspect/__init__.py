"""Inspecting a model: attention weights, expert routing and plots."""
