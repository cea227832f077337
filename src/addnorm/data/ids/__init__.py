"""Examples as token ids: the inputs and targets of each task."""
