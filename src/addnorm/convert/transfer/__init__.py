"""Weight transfer from a trained model to a model with different parts."""
