"""The list of benchmarks, and the one of start-up."""

from collections.abc import Sequence

from addnorm.bench import check_names, long_context, ours, prepared
from addnorm.bench.benchmark import Benchmark, Goal, Limit, Ratio
from addnorm.bench.generation_benchmarks import alone, decode, together, translations
from addnorm.bench.implementation import implementation, started
from addnorm.bench.training_benchmarks import (
    train_characters,
    train_decoder,
    train_translator_base,
    train_translator_tiny,
)

TORCH, OURS, WHOLE = "import torch", "import addnorm", "import addnorm.train and addnorm.generate"
FIRST = "first token, compiled before"


def start_up() -> Benchmark:
    """New processes, one after the other."""
    statements = {
        TORCH: "import torch",
        OURS: "import addnorm",
        WHOLE: "import addnorm, addnorm.training.trainer, addnorm.generate",
    }
    no_slower = Goal(must=1.10, at_most=True)
    return Benchmark(
        name="start-up",
        description="fresh processes: an import compared with torch's own, and a first token",
        unit="ms",
        figure="ms",
        prepare=prepared.gpt2,
        implementations=(
            *(
                implementation(name, started, statement=statement)
                for name, statement in statements.items()
            ),
            implementation(FIRST, ours.first_token),
        ),
        targets=(
            Ratio(ours=(OURS,), peers=(TORCH,), figure="ms", goal=no_slower),
            Ratio(ours=(WHOLE,), peers=(TORCH,), figure="ms", goal=no_slower),
            Limit(ours=(FIRST,), figure="ms", goal=Goal(must=3000.0, at_most=True)),
        ),
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
    start_up(),
)
"""All benchmarks."""


def named(names: Sequence[str]) -> list[Benchmark]:
    """The benchmarks of these names, or all. Raises `InputError` with the nearest name."""
    benchmarks = {benchmark.name: benchmark for benchmark in BENCHMARKS}
    check_names(names)
    return [benchmarks[name] for name in names] or list(BENCHMARKS)
