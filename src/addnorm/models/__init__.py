"""Encoder-only, decoder-only and encoder–decoder models, built from the same blocks.

Importing it lets `addnorm.nn` use the kernels that are fastest on this machine (`addnorm.tuning`).
"""

from typing import Annotated

from pydantic import Field

from addnorm.models.decoder import DecoderConfig, DecoderModel
from addnorm.models.encoder import EncoderConfig, EncoderModel
from addnorm.models.encoder_decoder import EncoderDecoderConfig, EncoderDecoderModel
from addnorm.nn.choices import install_provider
from addnorm.tuning.provider import machine_choices

ModelConfig = Annotated[
    EncoderConfig | DecoderConfig | EncoderDecoderConfig, Field(discriminator="kind")
]
"""Any model architecture."""

Model = EncoderModel | DecoderModel | EncoderDecoderModel

install_provider(machine_choices)

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
