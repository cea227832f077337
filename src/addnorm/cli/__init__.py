"""The command line: thin wrappers around library calls."""
