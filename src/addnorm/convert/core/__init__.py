"""What all families of checkpoints share: the family protocol, settings, tensor maps, tasks."""
