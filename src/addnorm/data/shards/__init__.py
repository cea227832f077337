"""Shards: texts in ids on disk, for training data that are larger than memory."""
