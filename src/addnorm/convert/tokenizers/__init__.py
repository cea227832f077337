"""Tokenizers of Hugging Face folders: loaded in every file layout, saved as `tokenizer.json`."""
