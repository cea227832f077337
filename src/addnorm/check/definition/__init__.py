"""The plain definition of every model, written from the papers and independent of `addnorm.nn`.

Speed does not matter here, only that each line can be read beside its equation. Tokens of several
texts stand in one row (`Texts`); padding does not exist, and a batch is nothing but several texts.
"""

from addnorm.check.definition.model import decoder_logits, encoder_decoder_logits, encoder_logits
from addnorm.check.definition.texts import Texts

__all__ = ["Texts", "decoder_logits", "encoder_decoder_logits", "encoder_logits"]
