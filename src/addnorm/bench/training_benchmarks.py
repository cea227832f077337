"""The training benchmarks: tokens per second, each library with its own model and loss."""

from typing import Any

from addnorm.bench import ours
from addnorm.bench.benchmark import Benchmark, implementation
from addnorm.bench.implementation import Cost
from addnorm.bench.peers import hf, joeynmt, litgpt, torch_nn, x_transformers
from addnorm.bench.sizes import BASE, CHARACTERS, DECODER, TINY
from addnorm.bench.targets import Beside, Goal, Limit


def train_characters() -> Benchmark:
    """A very small character-level GPT."""
    its: dict[str, Any] = {
        "sizes": CHARACTERS,
        "cost": Cost("f32", CHARACTERS.training_flop),
    }
    return Benchmark(
        name="train-characters",
        description="training a decoder of 4 × 128 on characters, 12 × 64 a batch, float32",
        unit="tokens/s",
        implementations=(
            implementation("ours", ours.train_decoder, **its),
            implementation("ours, compiled", ours.train_decoder, compile=True, **its),
            implementation("transformers", hf.train_decoder, "transformers", **its),
            implementation("x-transformers", x_transformers.train_decoder, "x_transformers", **its),
            implementation("litgpt", litgpt.train_decoder, "litgpt", **its),
        ),
        targets=(
            Beside(
                ours=("ours",),
                peers=("transformers", "x-transformers"),
                goal=Goal(must=1.2, aim=1.5),
            ),
        ),
    )


def train_decoder() -> Benchmark:
    """A character-level GPT, large enough to saturate the processor."""
    its: dict[str, Any] = {
        "sizes": DECODER,
        "cost": Cost("bf16", DECODER.training_flop),
        "precision": "bfloat16",
    }
    return Benchmark(
        name="train-decoder",
        description="training a decoder of 6 × 384 on characters, 16 × 256 a batch, bfloat16",
        unit="tokens/s",
        implementations=(
            implementation("ours", ours.train_decoder, **its),
            implementation("ours, compiled", ours.train_decoder, compile=True, **its),
            implementation("transformers", hf.train_decoder, "transformers", **its),
            implementation(
                "transformers, compiled", hf.train_decoder, "transformers", compile=True, **its
            ),
            implementation("x-transformers", x_transformers.train_decoder, "x_transformers", **its),
            implementation("litgpt", litgpt.train_decoder, "litgpt", **its),
        ),
        targets=(
            Limit(
                ours=("ours", "ours, compiled"),
                figure="fraction",
                goal=Goal(must=0.75, aim=0.85),
            ),
        ),
    )


def train_translator_tiny() -> Benchmark:
    """A small translator that trains on a laptop within an hour."""
    its: dict[str, Any] = {"sizes": TINY, "cost": Cost("f32", TINY.training_flop)}
    return Benchmark(
        name="train-translator-tiny",
        description="training a translator of 4 + 4 × 128, 128 sentences of 32 tokens, float32",
        unit="target tokens/s",
        implementations=(
            implementation("ours", ours.train_translator, **its),
            implementation("ours, compiled", ours.train_translator, compile=True, **its),
            implementation("Marian of transformers", hf.train_translator, "transformers", **its),
            implementation("nn.Transformer", torch_nn.train_translator, **its),
            implementation("joeynmt", joeynmt.train_translator, "joeynmt", **its),
        ),
        targets=(
            Beside(
                ours=("ours",),
                peers=("Marian of transformers",),
                goal=Goal(must=1.5, aim=2.0),
            ),
        ),
    )


def train_translator_base() -> Benchmark:
    """The base model of Vaswani et al. 2017."""
    cost = Cost("bf16", BASE.training_flop)
    its: dict[str, Any] = {"sizes": BASE, "cost": cost, "precision": "bfloat16"}
    in_f32: dict[str, Any] = {"sizes": BASE, "cost": Cost("f32", BASE.training_flop)}
    return Benchmark(
        name="train-translator-base",
        description="training a translator of 6 + 6 × 512, 64 sentences of 32 tokens, bfloat16",
        unit="target tokens/s",
        implementations=(
            implementation("ours", ours.train_translator, **its),
            implementation("ours, compiled", ours.train_translator, compile=True, **its),
            implementation(
                "nn.Transformer, compiled", torch_nn.train_translator, compile=True, **its
            ),
            implementation(
                "Marian of transformers, float32", hf.train_translator, "transformers", **in_f32
            ),
        ),
        targets=(
            Beside(
                ours=("ours", "ours, compiled"),
                peers=("nn.Transformer, compiled",),
                goal=Goal(must=1.3, aim=1.7),
            ),
        ),
    )
