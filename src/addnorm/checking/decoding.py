"""Compares the outputs of `generate` and `translate` with the reference definition of decoding.

The models are small, with random weights large enough that some texts end early and others never.
"""

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from functools import cache
from typing import Literal

import torch
from torch import Tensor

from addnorm.checking.case import VOCABULARY, build, drawn, randomise, row
from addnorm.checking.comparison import CellResult, Comparison, run_comparisons
from addnorm.checking.definition.decoding import Hypothesis, NextLogP, beam_search, greedy
from addnorm.checking.matrix import Cell
from addnorm.generate.beam import BeamConfig
from addnorm.generate.decode import DecodingConfig, generate, translate
from addnorm.generate.generated import Generated
from addnorm.generate.sampling import GreedyConfig
from addnorm.models import DecoderModel, EncoderDecoderModel

ENDS, START = (2, 7), 1
N_TEXTS = 12

MODELS: Mapping[str, str] = {
    "decoder": "decoder/alibi/layernorm/pre/scaled_dot/gqa/full/default_core/plain_output/mlp",
    "recurrent": "decoder/none/rmsnorm/pre/gru/mlp",
    "hybrid": (
        "decoder/sinusoidal/layernorm/pre/scaled_dot/gqa/window/default_core/plain_output/mlp/"
        "attention_beside_recurrence"
    ),
    "encoder_decoder": (
        "encoder_decoder/t5/layernorm/pre/scaled_dot/mha/full/default_core/plain_output/gated"
    ),
}
"""Decoders with a key/value cache, with recurrent states, and with both; an encoder–decoder."""

PENALTIES = (0.0, 0.6, 2.0)
STOPPINGS: tuple[bool | Literal["never"], ...] = (True, False, "never")
LIMITS = (1, 4, 9)


def decoding_cells() -> list[str]:
    """Return the names of all decoding checks."""
    return [f"decoding/{model}/{way}" for model in MODELS for way in ways()]


def ways() -> dict[str, DecodingConfig]:
    """Return the decoding methods: greedy, our kinds of beam search, and other libraries'."""
    beams: dict[str, DecodingConfig] = {
        f"beams_{width}_{penalty}": BeamConfig(
            beams=beams, length_penalty=penalty, n_best=n_best, width=width
        )
        for width in ("shrinking", "constant")
        for penalty, beams, n_best in zip(PENALTIES, (3, 4, 2), (1, 3, 1), strict=True)
    }
    others: dict[str, DecodingConfig] = {
        f"beams_stopping_{stopping}".lower(): BeamConfig(
            beams=4,
            length_penalty=1.0,
            n_best=2,
            normaliser="length",
            width="constant",
            early_stopping=stopping,
            unfinished="ranked",
        )
        for stopping in STOPPINGS
    }
    return {"greedy": GreedyConfig(), **beams, **others}


def compare_decoding(name: str) -> CellResult:
    """Compare one decoding method with its definition, under several length limits."""
    return run_comparisons(name, decoding_comparisons(name))


def decoding_comparisons(name: str) -> Iterator[Comparison]:
    """Yield comparisons of the tokens and scores of every text, under each length limit."""
    _, model_name, way = name.split("/")
    config = ways()[way]
    draw = random.Random(model_name)
    model = small_model(model_name)
    texts = [drawn(draw.randrange(1, 6), draw) for _ in range(N_TEXTS)]
    for limit in LIMITS:
        ours = written(model, texts, config, limit)
        expected = [_defined(_next_log_p(model_name, tuple(text)), config, limit) for text in texts]
        for i, (best, hypotheses) in enumerate(zip(ours, expected, strict=True)):
            where = f"text {i}, at most {limit} tokens"
            yield Comparison(f"tokens of {where}", token_table(best), _defined_ids(hypotheses))
            scores = torch.tensor([generated.score for generated in best])
            defined = torch.tensor([hypothesis.score for hypothesis in hypotheses])
            yield Comparison(f"scores of {where}", scores, defined, 1e-4)


@cache
def small_model(name: str) -> DecoderModel | EncoderDecoderModel:
    """Return the model with this name and random weights, shared by all checks."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = build(Cell.of(MODELS[name]).config()).eval()
        randomise(model)
    assert isinstance(model, DecoderModel | EncoderDecoderModel)
    return model


def written(
    model: DecoderModel | EncoderDecoderModel,
    texts: Sequence[Sequence[int]],
    config: DecodingConfig,
    limit: int,
) -> list[list[Generated]]:
    """Return the continuations or translations of the texts, at most `limit` tokens long."""
    if isinstance(model, DecoderModel):
        return generate(model, texts, config, max_new_tokens=limit, eos_id=ENDS)
    return translate(model, texts, config, max_new_tokens=limit, bos_id=START, eos_id=ENDS)


def _defined(log_p: NextLogP, config: DecodingConfig, limit: int) -> list[Hypothesis]:
    if isinstance(config, BeamConfig):
        return beam_search(log_p, config, limit, ENDS)
    return [greedy(log_p, limit, ENDS)]


@cache
def _next_log_p(name: str, text: tuple[int, ...]) -> NextLogP:
    """Return the model's next-token log-probabilities in float64, without a cache."""
    wide = _wide(name)

    @cache
    def log_p(ids: tuple[int, ...]) -> list[float]:
        with torch.no_grad():
            if isinstance(wide, DecoderModel):
                logits = wide(row([*text, *ids]))
            else:
                logits = wide(row(text), row([START, *ids]))
        probabilities = torch.exp(logits[0, -1] - logits[0, -1].max())
        return [math.log(p / float(probabilities.sum())) for p in probabilities.tolist()]

    return lambda ids: log_p(tuple(ids))


@cache
def _wide(name: str) -> DecoderModel | EncoderDecoderModel:
    return deepcopy(small_model(name)).double()


def token_table(texts: Sequence[Generated]) -> Tensor:
    """Return a row for each text: its padded tokens, and whether it ended."""
    return _table([(g.ids, g.finished == "eos") for g in texts])


def _defined_ids(texts: Sequence[Hypothesis]) -> Tensor:
    return _table([(h.ids[:-1] if h.ended else h.ids, h.ended) for h in texts])


def _table(rows: Sequence[tuple[Sequence[int], bool]]) -> Tensor:
    """Return a table with each row's padded tokens, and whether it ended."""
    size = max(LIMITS)
    filled = [[*ids, *[VOCABULARY] * (size - len(ids)), int(ended)] for ids, ended in rows]
    return torch.tensor(filled)
