"""Every family of foreign checkpoints there is."""

from addnorm.convert.family import Family
from addnorm.convert.gpt2 import GPT2

FAMILIES: tuple[Family, ...] = (GPT2,)
"""Where a model could be exported as several, the first stands."""
