"""AddNorm: transformers you can read, train and trust. Importing it is cheap: torch comes with the parts."""

__version__ = "0.1.0.dev0"
