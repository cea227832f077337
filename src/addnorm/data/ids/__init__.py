"""Examples as ids: the inputs and targets of each task."""
