"""Building blocks: tensors in, tensors out, independent of vocabulary, data and training."""
