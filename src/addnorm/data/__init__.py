"""Corpora, tokenizers and batches, independent of models.

Its names are imported on first use, so that the text side is there without torch.
"""

from addnorm.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
