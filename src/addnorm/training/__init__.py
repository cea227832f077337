"""Training: loss, optimisers, schedules, precision, checkpoints, and one visible loop."""
