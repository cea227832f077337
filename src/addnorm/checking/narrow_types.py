"""Lower precision: a cell's model in float32, and in bfloat16 under autocast."""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from addnorm.checking.cached import Reader, causality, selected
from addnorm.checking.case import Case
from addnorm.checking.comparison import Comparison, distance
from addnorm.checking.served import served
from addnorm.checking.served_in_batches import served_in_batches
from addnorm.models import DecoderModel, EncoderDecoderModel
from addnorm.nn.moe import MixtureOfExperts

BETWEEN_BATCHES = 2e-5
"""The float32 tolerance if batch-mates and padding differ, which changes the summation order."""

ROUNDING = 2.0**-8
"""The distance between neighbouring bfloat16 numbers, relative to them."""

DRAWS, SPREAD = 4, 3.0
"""How often noise of that size is drawn, and the allowed error relative to its largest effect."""


def narrow_types(case: Case, expected: Tensor) -> Iterator[Comparison]:
    """Compare float32 and bfloat16 results with the expected float64 values."""
    narrow = replace(case, model=deepcopy(case.model).float())
    with torch.no_grad():
        yield from _float32(narrow, expected)
        yield from bfloat16(narrow, expected)


def _float32(case: Case, expected: Tensor) -> Iterator[Comparison]:
    whole = case.run("right")
    yield Comparison("float32 logits", whole, expected)
    yield Comparison("float32 left padding", case.run("left"), whole, BETWEEN_BATCHES)
    alone = torch.cat([case.alone(i) for i in range(len(case.texts))])
    yield Comparison("float32 alone", alone, whole, BETWEEN_BATCHES)
    if not isinstance(case.model, DecoderModel | EncoderDecoderModel):
        return
    yield _causality(case)
    if case.may_cache():
        reader = Reader.of(case)
        assert reader.valid is not None
        n = reader.tokens.shape[1]
        steps = [reader.read(slice(i, i + 1)) for i in range(n)]
        logits = torch.cat(steps, dim=1)[reader.valid]
        yield Comparison("float32, one token at a time", logits, expected)
        for comparison in served(case, expected, "in_place"):
            yield comparison._replace(name=f"float32 {comparison.name}")
        for comparison in served_in_batches(case, expected, in_place=True):
            yield comparison._replace(name=f"float32 {comparison.name}")
        for comparison in selected(case, expected.float()):
            yield comparison._replace(name=f"float32 {comparison.name}")


def _causality(case: Case) -> Comparison:
    reader = Reader.of(case)

    def run(tokens: Tensor, valid: Tensor) -> Tensor:
        if not isinstance(case.model, EncoderDecoderModel):
            return case.model(tokens, valid)
        assert reader.memory is not None
        return case.model.decode(tokens, reader.memory, reader.memory_valid, valid)

    comparison = causality(case, run)
    return comparison._replace(name="float32 causality", tolerance=BETWEEN_BATCHES)


def bfloat16(case: Case, expected: Tensor) -> Iterator[Comparison]:
    """Yield comparisons under autocast: outputs are finite and, without experts, close.

    A router may choose another expert after rounding. Where the model magnifies rounding, as a norm
    of two small numbers does, more is allowed (`magnified`).
    """
    with torch.autocast("cpu", torch.bfloat16):
        ours = case.run("right")
    yield Comparison("bfloat16 is finite", ours.isfinite().all(), torch.tensor(True))
    if not any(isinstance(module, MixtureOfExperts) for module in case.model.modules()):
        plain = Comparison("bfloat16 logits", ours.bfloat16(), expected)
        yield plain if plain.holds else plain._replace(tolerance=SPREAD * magnified(case, expected))


def magnified(case: Case, expected: Tensor) -> float:
    """Return the largest effect of relative noise of `ROUNDING` on the expected values.

    The noise is in every weight and behind every innermost module, and the model in float64, so
    that the result does not depend on the computation in bfloat16.
    """
    draw = torch.Generator().manual_seed(0)

    def noisy(x: Tensor) -> Tensor:
        return x * (1 + ROUNDING * (2 * torch.rand(x.shape, generator=draw, dtype=x.dtype) - 1))

    def after(_: nn.Module, __: Any, y: Any) -> Any:
        return noisy(y) if isinstance(y, Tensor) and y.is_floating_point() else y

    errors: list[float] = []
    for _ in range(DRAWS):
        model = deepcopy(case.model).double()
        for parameter in model.parameters():
            parameter.data = noisy(parameter.data)
        for module in model.modules():
            if not [*module.children()]:
                module.register_forward_hook(after)
        errors.append(distance(replace(case, model=model).run("right"), expected))
    return max(errors)
