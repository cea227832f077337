"""AddNorm: Transformers you can read, train and trust. Importing it is cheap: no torch yet."""

__version__ = "0.1.0.dev0"
