"""The training benchmarks: tokens per second, each library with its own model and loss."""

from typing import Any

from addnorm.bench import ours
from addnorm.bench.benchmark import Benchmark, Goal, Limit, Ratio, Target
from addnorm.bench.implementation import Cost, Implementation, implementation
from addnorm.bench.peers import hf, joeynmt, litgpt, plain, x_transformers
from addnorm.bench.sizes import BASE, CHARACTERS, DECODER, TINY
from addnorm.bench.training import Precision


def train_characters() -> Benchmark:
    """A very small character-level GPT."""
    its: dict[str, Any] = {"sizes": CHARACTERS, "cost": Cost("f32", CHARACTERS.training_flop)}
    implementations = (
        implementation("ours", ours.train_decoder, **its),
        implementation("ours, compiled", ours.train_decoder, compile=True, **its),
        implementation("plain torch", plain.train_decoder, **its),
        implementation("transformers", hf.train_decoder, "transformers", **its),
        implementation("x-transformers", x_transformers.train_decoder, "x_transformers", **its),
        implementation("litgpt", litgpt.train_decoder, "litgpt", **its),
    )
    return Benchmark(
        name="train-characters",
        description="training a decoder of 4 × 128 on characters, 12 × 64 a batch, float32",
        unit="tokens/s",
        implementations=implementations,
        targets=(against_the_best(implementations, Goal(must=1.2, aim=1.5)),),
    )


def train_decoder(precision: Precision) -> Benchmark:
    """A character-level GPT, large enough to saturate the processor."""
    in_bf16 = precision == "bfloat16"
    its: dict[str, Any] = {
        "sizes": DECODER,
        "cost": Cost("bf16" if in_bf16 else "f32", DECODER.training_flop),
        "precision": precision,
    }
    compiled: dict[str, Any] = its | {"compile": True}
    implementations = (
        implementation("ours", ours.train_decoder, **its),
        implementation("ours, compiled", ours.train_decoder, **compiled),
        implementation("plain torch", plain.train_decoder, **its),
        implementation("plain torch, compiled", plain.train_decoder, **compiled),
        implementation("transformers", hf.train_decoder, "transformers", **its),
        implementation("transformers, compiled", hf.train_decoder, "transformers", **compiled),
        implementation("x-transformers", x_transformers.train_decoder, "x_transformers", **its),
        implementation("litgpt", litgpt.train_decoder, "litgpt", **its),
    )
    goal = Goal(must=1.4, aim=2.0) if in_bf16 else Goal(must=1.1, aim=1.3)
    return Benchmark(
        name="train-decoder" if in_bf16 else f"train-decoder-{precision}",
        description=f"training a decoder of 6 × 384 on characters, 16 × 256 a batch, {precision}",
        unit="tokens/s",
        implementations=implementations,
        targets=(
            against_the_best(implementations, goal),
            Limit(ours=OURS, figure="fraction", goal=Goal(must=0.75, aim=0.85)),
        ),
    )


def train_translator_tiny() -> Benchmark:
    """A small translator that trains on a laptop within an hour."""
    its: dict[str, Any] = {"sizes": TINY, "cost": Cost("f32", TINY.training_flop)}
    implementations = (
        implementation("ours", ours.train_translator, **its),
        implementation("ours, compiled", ours.train_translator, compile=True, **its),
        implementation("plain torch", plain.train_translator, **its),
        implementation("Marian of transformers", hf.train_translator, "transformers", **its),
        implementation("nn.Transformer", plain.train_torch_transformer, **its),
        implementation("joeynmt", joeynmt.train_translator, "joeynmt", **its),
    )
    return Benchmark(
        name="train-translator-tiny",
        description="training a translator of 4 + 4 × 128, 128 sentences of 32 tokens, float32",
        unit="target tokens/s",
        implementations=implementations,
        targets=(against_the_best(implementations, Goal(must=1.5, aim=2.2)),),
    )


def train_translator_base() -> Benchmark:
    """The base model of Vaswani et al. 2017."""
    cost = Cost("bf16", BASE.training_flop)
    its: dict[str, Any] = {"sizes": BASE, "cost": cost, "precision": "bfloat16"}
    in_f32: dict[str, Any] = {"sizes": BASE, "cost": Cost("f32", BASE.training_flop)}
    compiled: dict[str, Any] = its | {"compile": True}
    implementations = (
        implementation("ours", ours.train_translator, **its),
        implementation("ours, compiled", ours.train_translator, **compiled),
        implementation("plain torch", plain.train_translator, **its),
        implementation("nn.Transformer, compiled", plain.train_torch_transformer, **compiled),
        implementation(
            "Marian of transformers, float32", hf.train_translator, "transformers", **in_f32
        ),
    )
    return Benchmark(
        name="train-translator-base",
        description="training a translator of 6 + 6 × 512, 64 sentences of 32 tokens, bfloat16",
        unit="target tokens/s",
        implementations=implementations,
        targets=(against_the_best(implementations, Goal(must=2.0, aim=2.5)),),
    )


OURS = ("ours", "ours, compiled")


def against_the_best(implementations: tuple[Implementation, ...], goal: Goal) -> Target:
    """A target for the ratio of the faster of ours to the fastest of all others."""
    peers = tuple(peer.name for peer in implementations if peer.name not in OURS)
    return Ratio(ours=OURS, peers=peers, goal=goal)
