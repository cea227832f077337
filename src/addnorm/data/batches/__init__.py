"""Examples as batches: padding, packing, masking, augmentation."""
