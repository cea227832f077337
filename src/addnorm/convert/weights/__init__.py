"""Weight files: safetensors headers checked, tensors memory-mapped, folders read and written."""
