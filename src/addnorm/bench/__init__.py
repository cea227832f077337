"""Benchmarks of AddNorm against other libraries, at fixed sizes, measured in one run."""

from collections.abc import Sequence

from addnorm.errors import InputError, choices

NAMES = (
    "train-characters",
    "train-decoder",
    "train-decoder-float32",
    "train-translator-tiny",
    "train-translator-base",
    "decode",
    "decode-batch",
    "translate",
    "long-context",
    "serve",
    "serve-translator",
    "serve-drafts",
    "serve-arrivals",
    "serve-prefix",
    "serve-http",
    "serve-start",
    "start-up",
    "tokenize",
    "shards",
    "parallel-data",
    "parallel-shard",
    "parallel-tensor",
    "parallel-saving",
)
"""The names of the benchmarks of `bench.benchmarks`; checking a name imports no library."""


def selected(names: Sequence[str]) -> list[str]:
    """The benchmarks with these names; `parallel` selects all whose names begin with it."""
    families = {name: [n for n in NAMES if n.startswith(f"{name}-")] for name in names}
    return [n for name in names for n in ([name] if name in NAMES else families[name])]


def check_names(names: Sequence[str]) -> None:
    """Raise `InputError`, naming the nearest, for the first unknown benchmark."""
    for name in names:
        if not selected([name]):
            raise InputError(f"no benchmark is called {name!r}.{choices(name, NAMES)}")
