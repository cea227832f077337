"""Checks of families outside of models: losses, schedules, optimisers, tokenizers, data, batching.

A contract compares what any part of a family must do.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from addnorm.checking.comparison import Comparison
from addnorm.data import DataConfig
from addnorm.data.batches.batch import Batch
from addnorm.data.batches.buckets import BatchingConfig, Loaders, build_loaders
from addnorm.data.examples import Report
from addnorm.data.ids.encoding import IGNORE, Encoded, EncodedCorpus
from addnorm.data.tokenizing.tokenizers import TokenizerConfig
from addnorm.errors import InputError
from addnorm.models import DecoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.parts import Family, family_of
from addnorm.tasks.registry import TASKS
from addnorm.training.loss import LossConfig
from addnorm.training.optim import OptimizerConfig
from addnorm.training.schedule import ScheduleConfig

N_CLASSES = 7
REPORTS = {"train": Report(900, 900), "valid": Report(300, 300)}


_UNIONS: Mapping[str, Any] = {
    "loss": LossConfig,
    "schedule": ScheduleConfig,
    "optimizer": OptimizerConfig,
    "tokenizer": TokenizerConfig,
    "data": DataConfig,
    "batching": BatchingConfig,
}

OTHER_FAMILIES: Mapping[str, Family] = {
    name: family for name, union in _UNIONS.items() if (family := family_of(union)) is not None
}


def loss(config: Any) -> Iterator[Comparison]:
    """Check that a loss is a sum over the targets that count, with a correct gradient."""
    module = config.build()
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 5, N_CLASSES, generator=draw, dtype=torch.float64)
    targets = torch.randint(N_CLASSES, (2, 5), generator=draw)
    targets[0, 3:] = IGNORE
    whole = module(logits, targets)
    yield Comparison.that("the loss is one number", whole.shape == ())
    rows = torch.stack([module(logits[i : i + 1], targets[i : i + 1]) for i in (0, 1)])
    yield Comparison("the loss of a batch is the sum of its rows'", whole, rows.sum())
    other = torch.where((targets == IGNORE)[..., None], logits + 1, logits)
    yield Comparison("padding does not change the loss", module(other, targets), whole)
    logits.requires_grad_()
    [gradient] = torch.autograd.grad(module(logits, targets), logits)
    ignored = gradient[targets == IGNORE]
    yield Comparison("padding has no gradient", ignored, torch.zeros_like(ignored))
    yield Comparison.that(
        "the other targets have a gradient", bool(gradient[targets != IGNORE].any())
    )
    held = torch.autograd.gradcheck(lambda x: module(x, targets), (logits,), fast_mode=True)
    yield Comparison.that("gradcheck", held)
    nothing = module(logits, torch.full_like(targets, IGNORE))
    yield Comparison.that("the loss without targets is finite", bool(nothing.isfinite()))
    for dtype in (torch.float32, torch.bfloat16):
        narrow = module(logits.detach().to(dtype), targets)
        yield Comparison.that(f"the loss in {dtype} is finite", bool(narrow.isfinite()))


def schedule(config: Any) -> Iterator[Comparison]:
    """Check that a schedule returns a finite, non-negative, deterministic factor."""
    for total in (1, 2, 10, 1000):
        factors = [float(config.factor(step, total)) for step in range(1, total + 1)]
        good = all(math.isfinite(factor) and factor >= 0 for factor in factors)
        yield Comparison.that(f"every factor of {total} steps is finite and not negative", good)
        yield Comparison.that(
            f"some factor of {total} steps is not zero", any(factors) or total < 10
        )
        again = [float(config.factor(step, total)) for step in range(total, 0, -1)][::-1]
        yield Comparison.that(f"factors of {total} steps are always the same", factors == again)


def optimizer(config: Any) -> Iterator[Comparison]:
    """Check that an optimiser covers all parameters, reduces a sum of squares, and can resume."""
    model = DecoderConfig(
        d_model=8, n_layers=1, attention=AttentionConfig(n_heads=2), dropout=0.0
    ).build(N_CLASSES)
    optimizers = config.build(model, 1e-2)
    held = {
        id(p)
        for optimizer in optimizers
        for group in optimizer.param_groups
        for p in group["params"]
    }
    missing = [name for name, p in model.named_parameters() if id(p) not in held]
    yield Comparison.that(f"it has every parameter; missing: {missing[:3]}", not missing)
    lr = all("lr" in group for optimizer in optimizers for group in optimizer.param_groups)
    yield Comparison.that("every group has a learning rate that a schedule can scale", lr)
    before = _squares(model)
    _steps(model, optimizers, 20)
    yield Comparison.that("twenty steps lower a sum of squares", bool(_squares(model) < before))
    other = deepcopy(model)
    others = config.build(other, 1e-2)
    for restored, saved in zip(others, optimizers, strict=True):
        restored.load_state_dict(deepcopy(saved.state_dict()))
    _steps(model, optimizers, 2)
    _steps(other, others, 2)
    ours, expected = (torch.cat([p.flatten() for p in m.parameters()]) for m in (other, model))
    yield Comparison("it resumes from its saved state", ours, expected, 1e-6)


def _squares(model: nn.Module) -> Tensor:
    return torch.stack([(p**2).sum() for p in model.parameters()]).sum()


def _steps(model: nn.Module, optimizers: list[torch.optim.Optimizer], n: int) -> None:
    for _ in range(n):
        model.zero_grad()
        _squares(model).backward()
        for optimizer in optimizers:
            optimizer.step()


TEXTS = ("a text of letters", "ein zweiter Text", "1, 2 and 3")


def tokenizer(config: Any) -> Iterator[Comparison]:
    """Check that a tokenizer round-trips its training texts, also after saving and loading."""
    trained = config.train(list(TEXTS))
    with TemporaryDirectory() as folder:
        trained.save(Path(folder))
        loaded = config.load(Path(folder))
    for text in TEXTS:
        ids = [int(i) for i in trained.encode(text)]
        yield Comparison.that(
            f"the ids of {text!r} are below vocab_size", max(ids) < trained.vocab_size
        )
        yield Comparison.that(f"no id of {text!r} is below zero", min(ids) >= 0)
        yield Comparison.that(f"{text!r} is decoded to itself", trained.decode(ids) == text)
        yield Comparison.that(
            f"a saved tokenizer encodes {text!r} to the same ids", list(loaded.encode(text)) == ids
        )
        yield Comparison.that(
            f"a saved tokenizer decodes {text!r} to the same text", loaded.decode(ids) == text
        )
    yield Comparison.that(
        "a saved tokenizer has the same size", loaded.vocab_size == trained.vocab_size
    )


def data(config: Any) -> Iterator[Comparison]:
    """Check that a data configuration loads, with the same type each time."""
    first, second = config.load(), config.load()
    yield Comparison.that("it loads something", first is not None)
    yield Comparison.that("it loads the same twice", type(first) is type(second))


LENGTHS = (2, 7, 3, 5, 4, 6, 3, 2, 8, 5, 4, 6) * 100
"""The lengths of the texts to batch; each text has other ids but for its ends."""


def _corpora() -> Iterator[EncodedCorpus]:
    """Yield a corpus of the same texts for each task, and one of images."""
    for task in (TASKS["language"], TASKS["translation"], TASKS["classification"]):
        ids = [[2 + 8 * i + j for j in range(n)] for i, n in enumerate(LENGTHS)]
        texts = [
            Encoded(i, [0, *text], [i % 3] if task.one_class else [*text, 1])
            for i, text in enumerate(ids)
        ]
        yield EncodedCorpus(
            task.name, 0, 1, texts[300:], texts[:300], reports=REPORTS, layout=task.layout
        )
    pixels = [torch.full((1, 4, 4), i % 256, dtype=torch.uint8) for i in range(len(LENGTHS))]
    images = [Encoded(i, [], [i % 3], image) for i, image in enumerate(pixels)]
    facts: Any = {"reports": REPORTS, "medium": "images"}
    yield EncodedCorpus("classification", 0, 0, images[300:], images[:300], **facts)


def batching(config: Any) -> Iterator[Comparison]:
    """Check that epochs repeat exactly, can start at any batch, and have equal length.

    The task is the first of language modelling, translation, and classification of texts or images
    that the part accepts.
    """
    first, second = (_loaders(config) for _ in range(2))
    yield Comparison.that("a split without examples has no loader", first.test is None)
    assert first.valid is not None
    assert second.valid is not None
    pairs = {"train": (first.train, second.train), "valid": (first.valid, second.valid)}
    for name, (loader, other) in pairs.items():
        epochs = [list(loader.batches(epoch)) for epoch in range(3)]
        yield Comparison.that(f"{name} has batches", bool(epochs[0]))
        lengths = {len(loader), *map(len, epochs)}
        yield Comparison.that(
            f"every epoch of {name} has the same number of batches", len(lengths) == 1
        )
        same = all(_same(list(other.batches(epoch)), epochs[epoch]) for epoch in (2, 0, 1))
        yield Comparison.that(f"the batches of {name} are always the same", same)
        tail = _same(list(loader.batches(1, 1)), epochs[1][1:])
        yield Comparison.that(f"{name} can start at any batch of an epoch", tail)
        for batch in epochs[1]:
            yield from _batch(name, batch)
    in_order = _same(list(first.valid.batches(0)), list(first.valid.batches(5)))
    yield Comparison.that("valid always has the same order", in_order)


def _loaders(config: Any) -> Loaders:
    """Return loaders for the first task that the part accepts; raise the last refusal if none."""
    *others, last = _corpora()
    for corpus in others:
        with suppress(InputError):
            return build_loaders(config, corpus, seed=3)
    return build_loaders(config, last, seed=3)


def _batch(name: str, batch: Batch) -> Iterator[Comparison]:
    rows = {len(tensor) for tensor in (*batch.inputs.values(), batch.targets)}
    yield Comparison.that(f"all tensors of a batch of {name} have as many rows", len(rows) == 1)
    counted = Batch.of(batch.inputs, batch.targets, batch.indices).n_tokens
    yield Comparison.that(
        f"n_tokens of a batch of {name} counts its targets", batch.n_tokens == counted > 0
    )


def _same(batches: Sequence[Batch], others: Sequence[Batch]) -> bool:
    return len(batches) == len(others) and all(
        a.indices == b.indices
        and a.inputs.keys() == b.inputs.keys()
        and all(torch.equal(a.inputs[name], b.inputs[name]) for name in a.inputs)
        and torch.equal(a.targets, b.targets)
        for a, b in zip(batches, others, strict=True)
    )


OTHER_CONTRACTS: Mapping[str, Callable[[Any], Iterator[Comparison]]] = {
    "loss": loss,
    "schedule": schedule,
    "optimizer": optimizer,
    "tokenizer": tokenizer,
    "data": data,
    "batching": batching,
}
