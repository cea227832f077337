"""Shards: encoded texts on disk, for training data larger than memory."""
