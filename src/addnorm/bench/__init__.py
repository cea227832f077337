"""Benchmarks of AddNorm against other libraries, at fixed sizes, measured in one run."""
