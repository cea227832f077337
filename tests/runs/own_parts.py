"""Custom parts with their folders and modules, for tests."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.runs.tiny import write_recipe

PARTS = '''
"""Parts of someone's own."""

from dataclasses import dataclass, field

import torch
from torch import nn


class Scaled(nn.Module):
    def __init__(self, d_model, size):
        super().__init__()
        self.weight = nn.Parameter(torch.full((d_model,), size))

    def forward(self, x, valid=None):
        return self.weight * x


@dataclass(frozen=True)
class ScaledConfig:
    size: float = 1.0
    names: tuple[str, ...] = ()

    def build(self, d_model):
        return Scaled(d_model, self.size)


@dataclass
class NotFrozen:
    def build(self, d_model):
        return Scaled(d_model, 1.0)


@dataclass(frozen=True)
class TakesTwo:
    def build(self, d_model, more):
        return Scaled(d_model, 1.0)


@dataclass(frozen=True)
class HeadWithoutTask:
    def build(self, d_model, n_outputs):
        return nn.Linear(d_model, n_outputs)


class Wide(nn.Module):
    def __init__(self, d_model, d_inner, reads_weights):
        super().__init__()
        self.inner = nn.Linear(d_model, d_inner)
        self.outer = nn.Linear(d_inner, d_model)
        self.reads_weights = reads_weights

    def forward(self, x):
        if self.reads_weights:
            x = nn.functional.linear(x, self.inner.weight, self.inner.bias)
            return self.outer(x.relu())
        return self.outer(self.inner(x).relu())


@dataclass(frozen=True)
class WideConfig:
    d_inner: int = 48
    reads_weights: bool = False

    def build(self, d_model):
        return Wide(d_model, self.d_inner, self.reads_weights)


@dataclass(frozen=True)
class LossConfig:
    def build(self):
        return Loss()


class Loss(nn.Module):
    def forward(self, logits, targets):
        return nn.functional.cross_entropy(
            logits.flatten(0, -2), targets.flatten(), reduction="sum"
        )
'''


def write_parts(folder: Path, name: str = "own_norms") -> Path:
    """A module of parts in a file of its own."""
    file = folder / f"{name}.py"
    file.write_text(PARTS, encoding="utf-8")
    return file


def own_recipe(folder: Path, field: str, value: str, *, imports: str = "") -> Path:
    """The recipe of a language model with one field written at its end, and perhaps an import."""
    file = write_recipe(folder, "language")
    table, _, name = field.rpartition(".")
    text = file.read_text(encoding="utf-8")
    text = text.replace(f"[{table}]\n", f"[{table}]\n{name} = {value}\n", 1)
    file.write_text(f"{imports}\n{text}" if imports else text, encoding="utf-8")
    return file


@contextmanager
def forgotten(*names: str) -> Iterator[None]:
    """Modules of these names leave `sys.modules` at the beginning and at the end."""
    for name in names:
        sys.modules.pop(name, None)
    try:
        yield
    finally:
        for name in names:
            sys.modules.pop(name, None)
