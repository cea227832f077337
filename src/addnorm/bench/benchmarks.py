"""All benchmarks except that of long contexts: training, generation and start-up."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from addnorm.bench import (
    check_names,
    engines,
    first_tokens,
    libraries,
    long_context,
    nanogpt,
    ours,
    over_http,
    parallel,
    plain_torch,
    prepared,
    selected,
    serving,
    tokenizing,
    translating,
)
from addnorm.bench.benchmark import Benchmark, Goal, Limit, Ratio, Target
from addnorm.bench.decoding import BYTES, SHORT, DecodingSizes, Precision
from addnorm.bench.implementation import Cost, Implementation, Run, implementation, started
from addnorm.bench.training import BASE, CHARACTERS, DECODER, TINY, TrainingPrecision


def train_characters() -> Benchmark:
    """Return the benchmark of training a very small character-level GPT."""
    options: dict[str, Any] = {"sizes": CHARACTERS, "cost": Cost("f32", CHARACTERS.training_flop)}
    implementations = (
        implementation("ours", ours.train_decoder, **options),
        implementation("ours, compiled", ours.train_decoder, compile=True, **options),
        implementation("plain torch", plain_torch.train_decoder, **options),
        implementation("nanoGPT", nanogpt.train, **options),
        implementation("transformers", libraries.train_gpt2, "transformers", **options),
        implementation(
            "x-transformers", libraries.train_x_transformers, "x_transformers", **options
        ),
        implementation("litgpt", libraries.train_litgpt, "litgpt", **options),
    )
    return Benchmark(
        name="train-characters",
        description="training a decoder of 4 × 128 on characters, 12 × 64 a batch, float32",
        unit="tokens/s",
        implementations=implementations,
        targets=(against_the_best(implementations, Goal(must=1.3, aim=1.7)),),
    )


def train_decoder(precision: TrainingPrecision) -> Benchmark:
    """Return the benchmark of a character-level GPT large enough to saturate the processor."""
    in_bf16 = precision == "bfloat16"
    options: dict[str, Any] = {
        "sizes": DECODER,
        "cost": Cost("bf16" if in_bf16 else "f32", DECODER.training_flop),
        "precision": precision,
    }
    compiled: dict[str, Any] = options | {"compile": True}
    implementations = (
        implementation("ours", ours.train_decoder, **options),
        implementation("ours, compiled", ours.train_decoder, **compiled),
        implementation("plain torch", plain_torch.train_decoder, **options),
        implementation("plain torch, compiled", plain_torch.train_decoder, **compiled),
        implementation("nanoGPT", nanogpt.train, **options),
        implementation("nanoGPT, compiled", nanogpt.train, **compiled),
        implementation("transformers", libraries.train_gpt2, "transformers", **options),
        implementation("transformers, compiled", libraries.train_gpt2, "transformers", **compiled),
        implementation(
            "x-transformers", libraries.train_x_transformers, "x_transformers", **options
        ),
        implementation("litgpt", libraries.train_litgpt, "litgpt", **options),
    )
    goal = Goal(must=1.7, aim=2.5) if in_bf16 else Goal(must=1.15, aim=1.3)
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
    """Return the benchmark of a small translator that trains on a laptop within an hour."""
    options: dict[str, Any] = {"sizes": TINY, "cost": Cost("f32", TINY.training_flop)}
    implementations = (
        implementation("ours", ours.train_translator, **options),
        implementation("ours, compiled", ours.train_translator, compile=True, **options),
        implementation("plain torch", plain_torch.train_translator, **options),
        implementation("Marian of transformers", libraries.train_marian, "transformers", **options),
        implementation("nn.Transformer", plain_torch.train_torch_transformer, **options),
        implementation("joeynmt", libraries.train_joeynmt, "joeynmt", **options),
    )
    return Benchmark(
        name="train-translator-tiny",
        description="training a translator of 4 + 4 × 128, 128 sentences of 32 tokens, float32",
        unit="target tokens/s",
        implementations=implementations,
        targets=(against_the_best(implementations, Goal(must=1.7, aim=2.2)),),
    )


def train_translator_base() -> Benchmark:
    """Return the benchmark of training the base model of Vaswani et al. 2017."""
    cost = Cost("bf16", BASE.training_flop)
    options: dict[str, Any] = {"sizes": BASE, "cost": cost, "precision": "bfloat16"}
    in_f32: dict[str, Any] = {"sizes": BASE, "cost": Cost("f32", BASE.training_flop)}
    compiled: dict[str, Any] = options | {"compile": True}
    implementations = (
        implementation("ours", ours.train_translator, **options),
        implementation("ours, compiled", ours.train_translator, **compiled),
        implementation("plain torch", plain_torch.train_translator, **options),
        implementation("nn.Transformer, compiled", plain_torch.train_torch_transformer, **compiled),
        implementation(
            "Marian of transformers, float32", libraries.train_marian, "transformers", **in_f32
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
    """Return a target for the ratio of our faster implementation to the fastest other one."""
    peers = tuple(peer.name for peer in implementations if peer.name not in OURS)
    return Ratio(ours=OURS, peers=peers, goal=goal)


DECODERS: tuple[tuple[str, Callable[..., Run], tuple[str, ...], tuple[Precision, ...]], ...] = (
    ("ours", ours.decode, (), (*BYTES,)),
    ("llama.cpp", engines.decode_llama_cpp, ("llama_cpp", "gguf"), (*BYTES,)),
    ("CTranslate2", engines.decode_ctranslate2, ("ctranslate2",), ("float32", "int8")),
    ("transformers", libraries.decode_transformers, ("transformers",), ("float32", "bfloat16")),
)
"""The decoding implementations, the packages they need, and their precisions."""


def decode(name: str, batch: int, aims: Callable[[Precision], tuple[Target, ...]]) -> Benchmark:
    """Return a benchmark of decoding with GPT-2 small (random weights), in each precision."""
    sizes = DecodingSizes(batch=batch)
    implementations = list[Implementation]()
    for precision in BYTES:
        options: dict[str, Any] = {
            "sizes": sizes,
            "precision": precision,
            "cost": sizes.cost(precision),
        }
        implementations += [
            implementation(f"{name} {SHORT[precision]}", build, *needs, **options)
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


ALONE: dict[Precision, tuple[Goal, Goal]] = {
    "float32": (Goal(must=1.0, aim=1.1), Goal(must=0.95, aim=0.97)),
    "bfloat16": (Goal(must=1.2, aim=1.4), Goal(must=0.85, aim=0.92)),
    "int8": (Goal(must=1.2, aim=1.5), Goal(must=0.75, aim=0.9)),
    "int4": (Goal(must=1.0, aim=1.2), Goal(must=0.6, aim=0.75)),
}
"""The goals for one text: the ratio to llama.cpp, and the share of memory bandwidth."""


def alone(precision: Precision) -> tuple[Target, ...]:
    """Return the targets for one text: against llama.cpp, and as a share of memory bandwidth."""
    mine = (f"ours {SHORT[precision]}",)
    ratio, fraction = ALONE[precision]
    return (
        Ratio(ours=mine, peers=(f"llama.cpp {SHORT[precision]}",), goal=ratio),
        Limit(ours=mine, figure="fraction", goal=fraction),
    )


def together(precision: Precision) -> tuple[Target, ...]:
    """Return the targets for several texts: against the best peer in the same precision."""
    peers = tuple(
        f"{name} {SHORT[precision]}"
        for name, _, needs, precisions in DECODERS
        if needs and precision in precisions
    )
    return (Ratio(ours=(f"ours {SHORT[precision]}",), peers=peers, goal=Goal(must=1.5, aim=2.0)),)


def translations() -> Benchmark:
    """Return the benchmark of translating with the base model of Vaswani et al. 2017."""
    sizes = DecodingSizes(batch=64, prompt=20, new=32, vocab_size=BASE.vocab_size)
    implementations, targets = list[Implementation](), list[Target]()
    precisions: tuple[Precision, ...] = ("float32", "int8")
    for precision in precisions:
        options: dict[str, Any] = {"sizes": sizes, "beams": 4, "precision": precision}
        theirs = f"CTranslate2 {SHORT[precision]}"
        implementations += [
            implementation(f"ours {SHORT[precision]}", ours.translations, **options),
            implementation(theirs, engines.translate_ctranslate2, "ctranslate2", **options),
            implementation(
                f"{theirs}, workers",
                engines.translate_ctranslate2,
                "ctranslate2",
                workers=True,
                **options,
            ),
        ]
        if precision == "float32":
            implementations.append(
                implementation(
                    "transformers f32", libraries.translate_transformers, "transformers", **options
                )
            )
        goal = Goal(must=1.25, aim=1.5)
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


IMPORT_TORCH, IMPORT_OURS = "import torch", "import addnorm"
IMPORT_TRAINING = "import addnorm.train and addnorm.generate"
FIRST = "first token, compiled before"


def start_up() -> Benchmark:
    """Return the benchmark of starting new processes, one after another."""
    statements = {
        IMPORT_TORCH: "import torch",
        IMPORT_OURS: "import addnorm",
        IMPORT_TRAINING: "import addnorm, addnorm.training.trainer, addnorm.generate",
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
            Ratio(ours=(IMPORT_OURS,), peers=(IMPORT_TORCH,), figure="ms", goal=no_slower),
            Ratio(ours=(IMPORT_TRAINING,), peers=(IMPORT_TORCH,), figure="ms", goal=no_slower),
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
    serving.benchmark(),
    translating.benchmark(),
    serving.drafts_benchmark(),
    first_tokens.arrivals_benchmark(),
    first_tokens.prefix_benchmark(),
    over_http.http_benchmark(),
    over_http.start_benchmark(),
    start_up(),
    tokenizing.tokenizing(),
    tokenizing.shards(),
    *parallel.benchmarks(),
)
"""All benchmarks."""


def named(names: Sequence[str]) -> list[Benchmark]:
    """Return the benchmarks with these names, or all. Raises `InputError` for a wrong name."""
    benchmarks = {benchmark.name: benchmark for benchmark in BENCHMARKS}
    check_names(names)
    return [benchmarks[name] for name in selected(names)] or list(BENCHMARKS)
