"""Tokenizers of Hugging Face folders: read in every layout, written as `tokenizer.json`."""
