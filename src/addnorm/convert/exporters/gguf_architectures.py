"""The supported llama.cpp architectures, and choosing one that has all parts of a model."""

from collections.abc import Iterator, Mapping

from addnorm.convert.exporters.decoder_parts import (
    PartDescriptions,
    describe_parts,
    norm_kind,
)
from addnorm.errors import InputError
from addnorm.models import DecoderModel
from addnorm.models.ledger import Ledger

Architecture = Mapping[str, tuple[str, ...]]
"""The part descriptions that an architecture accepts."""

ANY_BIAS = ("none", "qkv", "out", "all")
PLAIN: Architecture = {
    "norm": ("rmsnorm",),
    "score": ("scaled dot",),
    "qk_norm": ("none",),
    "pattern": ("full",),
    "position": ("rotary",),
    "frequencies": ("none", "geometric"),
    "heads": ("of d_model in all", "of another width"),
    "embedding": ("plain",),
    "scale": ("one", "sqrt", "of its own"),
    "head": ("plain",),
    "tied": ("yes", "no"),
}
LLAMA: Architecture = PLAIN | {
    "placement": ("pre",),
    "frequencies": ("none", "geometric", "of its own"),
    "feedforward": ("gated silu",),
    "feedforward bias": ("none", "all"),
    "attention bias": ANY_BIAS,
}
QWEN3: Architecture = LLAMA | {
    "frequencies": PLAIN["frequencies"],
    "feedforward bias": ("none",),
    "attention bias": ("none", "qkv"),
    "qk_norm": ("rmsnorm",),
}
GEMMA: Architecture = QWEN3 | {
    "qk_norm": ("none",),
    "feedforward": ("gated gelu_tanh",),
    "position": ("rotary", "partial rotary"),
    "scale": ("sqrt",),
    "tied": ("yes",),
}
GPT2: Architecture = PLAIN | {
    "placement": ("pre",),
    "norm": ("layernorm",),
    "position": ("learned", "sinusoidal"),
    "heads": ("of d_model in all",),
    "feedforward": ("gelu_tanh",),
    "feedforward bias": ("all",),
    "attention bias": ("all",),
}
ARCHITECTURES: dict[str, Architecture] = {
    "qwen2": QWEN3
    | {"attention bias": ("qkv",), "qk_norm": ("none",), "heads": ("of d_model in all",)},
    "llama": LLAMA,
    "qwen3": QWEN3,
    "gemma": GEMMA,
    "gemma2": GEMMA
    | {
        "placement": ("sandwich",),
        "score": ("scaled dot with softcap",),
        "pattern": ("full", "a window in every second layer"),
        "head": ("with softcap",),
    },
    "gpt2": GPT2,
    "gptneox": GPT2
    | {
        "placement": ("pre", "parallel"),
        "position": ("rotary", "partial rotary"),
    },
    "mpt": GPT2
    | {
        "norm": ("layernorm", "layernorm without bias"),
        "position": ("alibi", "learned", "sinusoidal", "none"),
        "feedforward bias": ("none", "all"),
        "attention bias": ANY_BIAS,
    },
}
"""The supported architectures, more specific ones first."""


def architecture_of(model: DecoderModel, ledger: Ledger) -> str:
    """The first architecture that has every part of the model.

    Raises `InputError` naming the nearest one and the parts it lacks.
    """
    facts = describe_parts(model, ledger)
    lacks = {name: list(_lacking(facts, parts)) for name, parts in ARCHITECTURES.items()}
    name = min(lacks, key=lambda name: len(lacks[name]))
    if lacks[name]:
        raise InputError(
            f"no architecture of llama.cpp has the parts of this model. The nearest is {name!r}: "
            + "; ".join(lacks[name])
        )
    if norm_kind(model.stack.norm, ledger) != facts["norm"]:
        raise ledger.refusal(model.stack.norm, "", f"a final {facts['norm']}")
    return name


def _lacking(facts: PartDescriptions, parts: Architecture) -> Iterator[str]:
    for part, fact in facts.items():
        if fact not in parts[part]:
            yield f"its {part} is {' or '.join(map(repr, parts[part]))}, not {fact!r}"
