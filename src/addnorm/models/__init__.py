"""Encoders, decoders, encoder–decoders and dual encoders, built from the same blocks.

Importing it lets `addnorm.nn` use the kernels that are fastest on this machine (`addnorm.tuning`).
"""

from typing import Annotated

from pydantic import Field

from addnorm.models.decoder import DecoderConfig, DecoderModel
from addnorm.models.dual_encoder import DualEncoderConfig, DualEncoderModel, refuse_dual
from addnorm.models.encoder import EncoderConfig, EncoderModel
from addnorm.models.encoder_decoder import EncoderDecoderConfig, EncoderDecoderModel
from addnorm.nn.choices import install_provider
from addnorm.tuning.provider import machine_choices

ModelConfig = Annotated[
    EncoderConfig | DecoderConfig | EncoderDecoderConfig | DualEncoderConfig,
    Field(discriminator="kind"),
]
"""Any model architecture."""

Model = EncoderModel | DecoderModel | EncoderDecoderModel | DualEncoderModel

install_provider(machine_choices)

__all__ = [
    "DecoderConfig",
    "DecoderModel",
    "DualEncoderConfig",
    "DualEncoderModel",
    "EncoderConfig",
    "EncoderDecoderConfig",
    "EncoderDecoderModel",
    "EncoderModel",
    "Model",
    "ModelConfig",
    "refuse_dual",
]
