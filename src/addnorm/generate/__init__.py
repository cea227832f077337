"""Text generation: greedy search, sampling and beam search for every model architecture."""

from addnorm.data.tokenizing.text_decoding import TextDecoder
from addnorm.generate.beam import BeamConfig
from addnorm.generate.compiled import CompiledContinuation, CompiledTranslation
from addnorm.generate.decode import DecodingConfig, decode, generate, stream, transcribe, translate
from addnorm.generate.generated import Generated
from addnorm.generate.next_token import Continuation, NextToken, Transcription, Translation
from addnorm.generate.rules import RulesConfig
from addnorm.generate.sampling import GreedyConfig, SampleConfig

__all__ = [
    "BeamConfig",
    "CompiledContinuation",
    "CompiledTranslation",
    "Continuation",
    "DecodingConfig",
    "Generated",
    "GreedyConfig",
    "NextToken",
    "RulesConfig",
    "SampleConfig",
    "TextDecoder",
    "Transcription",
    "Translation",
    "decode",
    "generate",
    "stream",
    "transcribe",
    "translate",
]
