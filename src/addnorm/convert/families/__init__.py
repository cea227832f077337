"""Model families: the mapping of each one's Hugging Face checkpoints to our models."""
