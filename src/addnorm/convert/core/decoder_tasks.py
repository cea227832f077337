"""Decoders that classify texts or tag tokens, by the classes that transformers has for this.

A text has the class of its last token; we read such a model as an encoder with a causal mask.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from addnorm.convert.core.family import NO_PADDING, ConfigMap, ModelSpec
from addnorm.convert.core.keys import ConfigTable, Fields
from addnorm.convert.core.settings import Json, Settings, labels_of
from addnorm.convert.core.tasks import (
    DecoderHead,
    Task,
    architecture,
    label_keys,
    problem_of,
    task_of,
)
from addnorm.models import DecoderConfig, EncoderConfig
from addnorm.models.transformer import TransformerConfig
from addnorm.nn.heads import ClassificationHeadConfig, HeadConfig, TaggingHeadConfig

ENDINGS: Mapping[Task, str] = {
    "sequence": "ForSequenceClassification",
    "tags": "ForTokenClassification",
}
"""The ends of the names of classes that classify, by task."""

TASKS: tuple[Task, ...] = ("sequence", "tags")
HEADS: Mapping[Task, HeadConfig] = {
    "sequence": ClassificationHeadConfig(pooling="last", out_bias=False),
    "tags": TaggingHeadConfig(),
}
HEAD_NAMES: Mapping[type, Mapping[str, str]] = {
    ClassificationHeadConfig: {"proj": "score"},
    TaggingHeadConfig: {"proj": "score"},
}
"""Their names of the parts of these heads."""


@dataclass(frozen=True)
class ClassifierHead:
    """The keys of a classifying head; its class name is `stem` plus an ending."""

    stem: str
    tasks: tuple[Task, ...]

    @property
    def endings(self) -> dict[str, Task]:
        """The task for each ending of a class name."""
        return {ENDINGS[task]: task for task in self.tasks}

    def read(self, settings: Settings) -> Fields:
        task = task_of(settings, self.stem, self.endings)
        settings.ignore("tie_word_embeddings")
        values: dict[str, Any] = {"head": HEADS[task], "labels": labels_of(settings)}
        if (pad := settings.get("pad_token_id", NO_PADDING)) != NO_PADDING:
            values["pad_id"] = pad
        if task == "sequence":
            return values | {"head.problem": problem_of(settings)}
        settings.expect("token_classification_bias", True)
        return values | {"head.dropout": self._dropout(settings)}

    def _dropout(self, settings: Settings) -> float:
        rates = [settings.optional_float(f"{part}_dropout") for part in ("classifier", "hidden")]
        return next((rate for rate in rates if rate is not None), 0.1)

    def write(self, spec: ModelSpec) -> Json:
        head: Any = spec.model.head
        names = [architecture(head, self.stem, self.endings)]
        keys: Json = {"architectures": names, "tie_word_embeddings": False}
        if spec.pad_id not in (None, NO_PADDING):  # behind which transformers finds the last token
            keys["pad_token_id"] = spec.pad_id
        if isinstance(head, TaggingHeadConfig):
            keys["classifier_dropout"] = head.dropout
        return keys | label_keys(spec.labels, head)


@dataclass(frozen=True)
class DecoderTables:
    """The config tables of a decoder that writes, and of the same decoder that classifies."""

    writing: ConfigTable
    head: ClassifierHead

    @property
    def classifying(self) -> ConfigTable:
        """The table for the decoder that classifies."""
        base, entries = self.writing.base, self.writing.entries
        parts = {part.name: getattr(base, part.name) for part in fields(TransformerConfig)}
        return ConfigTable(
            EncoderConfig(**parts, causal=True),
            tuple(self.head if isinstance(entry, DecoderHead) else entry for entry in entries),
            self.writing.constants,
            self.writing.simplify,
        )

    def read(self, settings: Settings) -> ModelSpec:
        """The configuration for a `config.json`. Raises `InputError` for an unsupported value."""
        name = (settings.string_list("architectures") or [""])[0]
        classifies = name.endswith(tuple(self.head.endings))
        return (self.classifying if classifies else self.writing).read(settings)

    def write(self, spec: ModelSpec) -> Json:
        """The keys for a model, as far as the family can express it."""
        classifies = isinstance(spec.model, EncoderConfig) and spec.model.causal
        return (self.classifying if classifies else self.writing).write(spec)


def with_classifier(config: ConfigMap, tasks: tuple[Task, ...] = TASKS) -> ConfigMap:
    """The tables of a decoder that also classifies, in these tasks; only with a usual head."""
    if not isinstance(config, ConfigTable) or not isinstance(config.base, DecoderConfig):
        return config
    stems = [entry.stem for entry in config.entries if isinstance(entry, DecoderHead)]
    return DecoderTables(config, ClassifierHead(stems[0], tasks)) if stems and tasks else config
