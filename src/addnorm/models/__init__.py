"""Encoder-only, decoder-only and encoder–decoder models, built from the same blocks."""

from typing import Annotated

from pydantic import Field

from addnorm.models.decoder import DecoderConfig, DecoderModel
from addnorm.models.encoder import EncoderConfig, EncoderModel
from addnorm.models.encoder_decoder import EncoderDecoderConfig, EncoderDecoderModel

ModelConfig = Annotated[
    EncoderConfig | DecoderConfig | EncoderDecoderConfig, Field(discriminator="kind")
]
"""Any model architecture."""

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
