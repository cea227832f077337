"""Tuning: measure which kernels are fastest on this machine, and remember it."""
