"""transformers in float64 throughout: the mode of the proof of families."""

from addnorm.checking.wide import Wide as Wide
