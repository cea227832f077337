"""The generation benchmarks: decoding and translation, with the same random weights for all."""

from collections.abc import Callable
from functools import partial
from typing import Any

from addnorm.bench import ours, prepared
from addnorm.bench.benchmark import Benchmark, Goal, Limit, Ratio, Target
from addnorm.bench.decoding import BYTES, SHORT, DecodingSizes, Precision
from addnorm.bench.implementation import Implementation, Run, implementation
from addnorm.bench.peers import ctranslate2, hf, llama_cpp
from addnorm.bench.sizes import BASE

DECODERS: tuple[tuple[str, Callable[..., Run], tuple[str, ...], tuple[Precision, ...]], ...] = (
    ("ours", ours.decode, (), ("float32", "bfloat16", "int8")),
    ("llama.cpp", llama_cpp.decode, ("llama_cpp", "gguf"), ("float32", "bfloat16", "int8")),
    ("CTranslate2", ctranslate2.decode, ("ctranslate2",), ("float32", "int8")),
    ("transformers", hf.decode, ("transformers",), ("float32", "bfloat16")),
)
"""The decoding implementations, the packages they need, and their precisions."""


def decode(name: str, batch: int, aims: Callable[[Precision], tuple[Target, ...]]) -> Benchmark:
    """GPT-2 small with random weights, in each precision."""
    sizes = DecodingSizes(batch=batch)
    implementations = list[Implementation]()
    for precision in BYTES:
        its: dict[str, Any] = {
            "sizes": sizes,
            "precision": precision,
            "cost": sizes.cost(precision),
        }
        implementations += [
            implementation(f"{name} {SHORT[precision]}", build, *needs, **its)
            for name, build, needs, precisions in DECODERS
            if precision in precisions
        ]
    return Benchmark(
        name=name,
        description=f"GPT-2 small, {batch} × 128 tokens of prompt and 128 new ones, greedy",
        unit="new tokens/s",
        implementations=tuple(implementations),
        targets=tuple(target for precision in BYTES for target in aims(precision)),
        details=("with prompt", "prompt ms"),
        prepare=prepared.gpt2,
    )


def alone(precision: Precision) -> tuple[Target, ...]:
    """One text at a time: against llama.cpp, and the fraction of the memory bandwidth."""
    mine = (f"ours {SHORT[precision]}",)
    must = {"float32": 1.0, "bfloat16": 1.05, "int8": 1.15}[precision]
    return (
        Ratio(ours=mine, peers=(f"llama.cpp {SHORT[precision]}",), goal=Goal(must=must)),
        Limit(ours=mine, figure="fraction", goal=Goal(aim=0.9)),
    )


def together(precision: Precision) -> tuple[Target, ...]:
    """Several texts at a time: against the best of the others in the same precision."""
    peers = tuple(
        f"{name} {SHORT[precision]}"
        for name, _, needs, precisions in DECODERS
        if needs and precision in precisions
    )
    return (Ratio(ours=(f"ours {SHORT[precision]}",), peers=peers, goal=Goal(must=1.4, aim=2.0)),)


def translations() -> Benchmark:
    """The base model of Vaswani et al. 2017 with random weights."""
    sizes = DecodingSizes(batch=64, prompt=20, new=32, vocab_size=BASE.vocab_size)
    implementations, targets = list[Implementation](), list[Target]()
    precisions: tuple[Precision, ...] = ("float32", "int8")
    for precision in precisions:
        its: dict[str, Any] = {"sizes": sizes, "beams": 4, "precision": precision}
        theirs = f"CTranslate2 {SHORT[precision]}"
        implementations += [
            implementation(f"ours {SHORT[precision]}", ours.translations, **its),
            implementation(theirs, ctranslate2.translate, "ctranslate2", **its),
            implementation(
                f"{theirs}, workers", ctranslate2.translate, "ctranslate2", workers=True, **its
            ),
        ]
        if precision == "float32":
            implementations.append(
                implementation("transformers f32", hf.translate, "transformers", **its)
            )
        goal = Goal(must=1.2, aim=1.5)
        peers = (theirs, f"{theirs}, workers")
        targets.append(Ratio(ours=(f"ours {SHORT[precision]}",), peers=peers, goal=goal))
    return Benchmark(
        name="translate",
        description="a translator of 6 + 6 × 512, beam 4, 64 sources of 20 tokens to 32 tokens",
        unit="target tokens/s",
        implementations=tuple(implementations),
        targets=tuple(targets),
        prepare=partial(prepared.translator, sizes=BASE),
    )
