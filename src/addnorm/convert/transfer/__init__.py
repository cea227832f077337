"""Weight transfer: the weights of a trained model in a model with other parts."""
