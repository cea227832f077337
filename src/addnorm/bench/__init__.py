"""The bench: ours beside its peers on benchmarks of fixed sizes, all measured in one run."""
