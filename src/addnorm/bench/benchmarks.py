"""The list of benchmarks."""

from collections.abc import Sequence

from addnorm.bench import check_names, long_context, start_up
from addnorm.bench.benchmark import Benchmark
from addnorm.bench.generation_benchmarks import alone, decode, together, translations
from addnorm.bench.training_benchmarks import (
    train_characters,
    train_decoder,
    train_translator_base,
    train_translator_tiny,
)

BENCHMARKS = (
    train_characters(),
    train_decoder("bfloat16"),
    train_decoder("float32"),
    train_translator_tiny(),
    train_translator_base(),
    decode("decode", 1, alone),
    decode("decode-batch", 16, together),
    translations(),
    long_context.benchmark(),
    start_up.benchmark(),
)
"""All benchmarks."""


def named(names: Sequence[str]) -> list[Benchmark]:
    """The benchmarks of these names, or all. Raises `InputError` with the nearest name."""
    benchmarks = {benchmark.name: benchmark for benchmark in BENCHMARKS}
    check_names(names)
    return [benchmarks[name] for name in names] or list(BENCHMARKS)
