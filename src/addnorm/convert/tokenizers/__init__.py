"""Tokenizers of Hugging Face folders: loaded in every layout, saved as `tokenizer.json`."""
