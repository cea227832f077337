"""Making batches of examples: padding, packing, masking, augmentation."""
