"""Tasks: one file each, which everything else consults. Names are imported on first use."""

from addnorm.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
