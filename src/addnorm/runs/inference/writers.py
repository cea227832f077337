"""What writes the texts of a run: its model, or a compiled graph, early exits or drafts of it."""

from collections.abc import Sequence
from copy import copy

import torch

from addnorm.errors import InputError
from addnorm.generate import (
    CompiledContinuation,
    CompiledTranslation,
    Continuation,
    DecodingConfig,
)
from addnorm.generate.early_exit import EarlyExit, check_exits_early
from addnorm.generate.self_speculation import SelfSpeculation, check_speculates
from addnorm.models import DecoderModel, EncoderDecoderModel
from addnorm.runs.options import CacheDtype
from addnorm.runs.trained_model import TrainedModel

Compiled = CompiledContinuation | CompiledTranslation | EarlyExit | SelfSpeculation
"""A replacement for a model: a compiled graph, early exits, or drafts of its own."""


def compiled(
    run: TrainedModel,
    decoding: DecodingConfig,
    *,
    several: bool,
    cache_dtype: CacheDtype | None = None,
) -> Compiled:
    """Compile the run's model, for one text at a time or for `several` at once.

    Raises `InputError` if that is not possible.
    """
    beams = decoding.beams if decoding.kind == "beam" else 1
    match run.model:
        case DecoderModel() as model:
            never = run.tokenizers.target.never_ids
            dtype = None if cache_dtype is None else getattr(torch, cache_dtype)
            several = several or beams > 1
            return CompiledContinuation(model, several=several, never=never, cache_dtype=dtype)
        case EncoderDecoderModel() if cache_dtype is not None:
            raise InputError(
                f"{run.name}: only decoder-only models keep keys and values in {cache_dtype}"
            )
        case EncoderDecoderModel() as model:
            target = run.tokenizers.target
            return CompiledTranslation(
                model, target.bos_id, several=several, beams=beams, never=target.never_ids
            )
        case _:
            raise InputError(
                f"{run.name}: only a model that writes text compiles: this is for {run.task}"
            )


def speculation(run: TrainedModel) -> SelfSpeculation:
    """Return the run's model with speculative decoding by its own drafts, one text at a time.

    Raises `InputError` for a model without multi-token prediction, or with states that cannot
    forget a token.
    """
    check_speculates(run.model)
    assert isinstance(run.model, DecoderModel)
    return SelfSpeculation(run.model, never=run.tokenizers.target.never_ids)


def translator(
    model: EncoderDecoderModel, compiled: Compiled | None
) -> EncoderDecoderModel | CompiledTranslation:
    """Return the compiled graph, with its own state, or the model if there is none."""
    if isinstance(compiled, EarlyExit):
        raise InputError("early exits are for encoders and decoders: a translator has none")
    return copy(compiled) if isinstance(compiled, CompiledTranslation) else model


def continuation(
    model: DecoderModel, compiled: Compiled | None, never: Sequence[int]
) -> Continuation | CompiledContinuation | SelfSpeculation:
    """Return the compiled graph, the drafts, or the model, with early exits if they are given."""
    if isinstance(compiled, CompiledContinuation):
        return copy(compiled)  # with a state of its own: other threads may write by the same graph
    if isinstance(compiled, SelfSpeculation):
        return compiled
    if isinstance(compiled, EarlyExit):
        check_exits_early(model)
        return Continuation(model, early=compiled, never=never)
    return Continuation(model, never=never)
