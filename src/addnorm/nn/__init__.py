"""Building blocks: tensors in, tensors out; they know nothing of vocabulary, data or training."""
