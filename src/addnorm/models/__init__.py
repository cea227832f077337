"""Models: encoder-only, decoder-only and encoder–decoder, from the same block."""

from typing import Annotated

from pydantic import Field

from addnorm.models.decoder import DecoderConfig, DecoderModel
from addnorm.models.encoder import EncoderConfig, EncoderModel
from addnorm.models.encoder_decoder import EncoderDecoderConfig, EncoderDecoderModel

ModelConfig = Annotated[
    EncoderConfig | DecoderConfig | EncoderDecoderConfig, Field(discriminator="kind")
]
"""Every architecture there is."""

Model = EncoderModel | DecoderModel | EncoderDecoderModel

__all__ = [
    "DecoderConfig",
    "DecoderModel",
    "EncoderConfig",
    "EncoderDecoderConfig",
    "EncoderDecoderModel",
    "EncoderModel",
    "Model",
    "ModelConfig",
]
