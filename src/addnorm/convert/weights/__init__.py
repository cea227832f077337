"""Reading and writing weight files: validated headers, memory-mapped tensors, shards."""
