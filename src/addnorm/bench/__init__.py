"""The bench: ours beside its peers on works of fixed sizes, all measured in one run."""
