"""Model families: how each one's Hugging Face checkpoints correspond to models of ours."""
