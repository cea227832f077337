"""Benchmark implementations by other libraries, one file each."""
