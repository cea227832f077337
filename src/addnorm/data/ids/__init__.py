"""Examples as ids: what a model of each task reads and predicts."""
