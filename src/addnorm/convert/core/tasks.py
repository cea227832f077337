"""Encoder tasks: the head named by the `architectures` key of a `config.json`."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Literal

from addnorm.convert.core.family import ModelSpec
from addnorm.convert.core.settings import Settings, labels_of
from addnorm.errors import InputError, nearest
from addnorm.models import EncoderConfig
from addnorm.nn.heads import (
    ClassificationHeadConfig,
    HeadConfig,
    HiddenHeadConfig,
    PoolerHeadConfig,
    TaggingHeadConfig,
    TokenHeadConfig,
)
from addnorm.parts import kind_of

Task = Literal["body", "tokens", "sequence", "tags"]

ENDINGS: dict[str, Task] = {
    "Model": "body",
    "ForMaskedLM": "tokens",
    "ForSequenceClassification": "sequence",
    "ForTokenClassification": "tags",
}
"""How the names of their classes end, for text."""


def task_of(settings: Settings, stem: str, endings: Mapping[str, Task] = ENDINGS) -> Task:
    """The task of the first architecture; without one, the body alone.

    Raises `InputError` for a class that we have no head for.
    """
    names = settings.string_list("architectures")
    if not names:
        return "body"
    known: dict[str, Task] = {f"{stem}{ending}": task for ending, task in endings.items()}
    if names[0] not in known:
        raise settings.refuse(
            "architectures", f"valid are {', '.join(known)}.{nearest(names[0], known)}"
        )
    return known[names[0]]


def architecture(head: HeadConfig, stem: str, endings: Mapping[str, Task] = ENDINGS) -> str:
    """The name of the Hugging Face class with this head. Raises `InputError` without one."""
    match head:
        case TokenHeadConfig():
            task = "tokens"
        case ClassificationHeadConfig():
            task = "sequence"
        case TaggingHeadConfig():
            task = "tags"
        case PoolerHeadConfig() | HiddenHeadConfig():
            task = "body"
        case _:
            task = "own"
    for ending, known in endings.items():
        if known == task:
            return f"{stem}{ending}"
    raise InputError(f"this family has no {kind_of(head)} head")


def labels_for(settings: Settings, task: Task) -> tuple[str, ...]:
    """The names of the classes or tags, where the head has any."""
    return labels_of(settings) if task in ("sequence", "tags") else ()


def without_pooler(spec: ModelSpec, names: Collection[str]) -> ModelSpec:
    """The model with its hidden states as they are, where there is no pooler among the names."""
    model = spec.model
    assert isinstance(model, EncoderConfig)
    if not isinstance(model.head, PoolerHeadConfig) or any("pooler." in name for name in names):
        return spec
    return replace(spec, model=replace(model, head=HiddenHeadConfig()))
