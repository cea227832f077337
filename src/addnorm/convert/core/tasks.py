"""Tasks of encoders, and heads, given by the `architectures` key of a `config.json`."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from addnorm.convert.core.family import ModelSpec, token_head_of
from addnorm.convert.core.keys import Fields
from addnorm.convert.core.settings import Json, Settings, labels_of
from addnorm.errors import InputError, choices
from addnorm.models import DualEncoderConfig, EncoderConfig, ModelConfig
from addnorm.nn.ctc import CTCHeadConfig
from addnorm.nn.feedforward import FeedForwardConfig, GatedFeedForwardConfig
from addnorm.nn.heads import (
    ClassificationHeadConfig,
    HeadConfig,
    HiddenHeadConfig,
    PoolerHeadConfig,
    Problem,
    SpanHeadConfig,
    TaggingHeadConfig,
    TokenHeadConfig,
)
from addnorm.nn.vectors import VectorHeadConfig
from addnorm.parts import kind_of

Task = Literal["body", "tokens", "sequence", "tags", "spans", "frames"]

ENDINGS: dict[str, Task] = {
    "Model": "body",
    "ForMaskedLM": "tokens",
    "ForSequenceClassification": "sequence",
    "ForTokenClassification": "tags",
    "ForQuestionAnswering": "spans",
}
"""The tasks of text encoders by class name ending."""


def task_of(settings: Settings, stem: str, endings: Mapping[str, Task] = ENDINGS) -> Task:
    """The task of the first architecture; "body" if there is none.

    Raises `InputError` for an unsupported class.
    """
    names = settings.string_list("architectures")
    if not names:
        return "body"
    tasks: dict[str, Task] = {f"{stem}{ending}": task for ending, task in endings.items()}
    if names[0] not in tasks:
        raise settings.refuse("architectures", choices(names[0], tasks).lstrip())
    return tasks[names[0]]


@dataclass(frozen=True)
class DecoderHead:
    """The keys of a decoder's head; its class name is `stem` plus `ending`, or `Model` for no head.

    `tied` is the default of `tie_word_embeddings`, and `bias` whether scores have one.
    """

    stem: str
    tied: bool
    ending: str = "ForCausalLM"
    bias: bool = False

    def read(self, settings: Settings) -> Fields:
        tied = settings.get("tie_word_embeddings", self.tied)
        return {"head": decoder_head(settings, tied=tied), "head.bias": self.bias}

    def write(self, spec: ModelSpec) -> Json:
        if isinstance(spec.model.head, HiddenHeadConfig):
            return {"architectures": [f"{self.stem}Model"], "tie_word_embeddings": False}
        tied = token_head_of(spec.model).tied
        return {"architectures": [f"{self.stem}{self.ending}"], "tie_word_embeddings": tied}


def decoder_head(settings: Settings, *, tied: bool) -> TokenHeadConfig | HiddenHeadConfig:
    """The head of a decoder; none if its class has no head and its table is not tied."""
    return HiddenHeadConfig() if is_body(settings) and not tied else TokenHeadConfig(tied=tied)


def is_body(settings: Settings) -> bool:
    """Whether the first architecture is the body without a head."""
    name = (settings.string_list("architectures") or [""])[0]
    return name.endswith("Model") and not name.endswith("HeadModel")


@dataclass(frozen=True)
class EncoderHeads:
    """The keys of an encoder's task; each has a head, and a class name of `stem` plus an ending."""

    stem: str
    heads: Mapping[Task, HeadConfig]
    endings: Mapping[str, Task] = field(default_factory=lambda: ENDINGS)

    def read(self, settings: Settings) -> Fields:
        endings: dict[str, Task] = {
            ending: task for ending, task in self.endings.items() if task in self.heads
        }
        task = task_of(settings, self.stem, endings)
        values: dict[str, Any] = {"head": self.heads[task]}
        if task in ("sequence", "tags"):
            values["labels"] = labels_of(settings)
        if task == "sequence":
            values["head.problem"] = problem_of(settings)
        return values

    def write(self, spec: ModelSpec) -> Json:
        head: Any = spec.model.head
        labelled = isinstance(head, ClassificationHeadConfig | TaggingHeadConfig)
        keys = label_keys(spec.labels, head) if labelled else {}
        return {"architectures": [architecture(head, self.stem, self.endings)], **keys}


def like_feedforward(model: ModelConfig) -> ModelConfig:
    """The model with its feed-forward activation in the head's transform too."""
    head = model.head
    assert isinstance(model.feedforward, FeedForwardConfig | GatedFeedForwardConfig)
    if not isinstance(head, TokenHeadConfig) or head.transform is None:
        return model
    transform = replace(head.transform, activation=model.feedforward.activation)
    return replace(model, head=replace(head, transform=transform))


WRITERS = {"decoder": "a decoder that writes", "encoder_decoder": "an encoder with its decoder"}

LACKS = {
    "EncoderModel": "the decoder",
    "DoubleHeadsModel": "a second head",
    "ForMultipleChoice": "a head that chooses between texts",
    "ForQuestionAnswering": "a head for spans of answers",
    "ForSequenceClassification": "a head that classifies texts",
    "ForTokenClassification": "a head for tags",
    "ForAudioClassification": "a head that classifies sounds",
}
"""Class name endings of generative families that are different models, with the difference."""


def check_class(settings: Settings, spec: ModelSpec) -> None:
    """Raise `InputError` for an unsupported class of a generative family."""
    if isinstance(spec.model, EncoderConfig | DualEncoderConfig):
        return
    supported = f"this family is read as {WRITERS[spec.model.kind]}"
    for name in settings.string_list("architectures") or ():
        for ending, what in LACKS.items():
            if name.endswith(ending):
                has = "is without" if ending == "EncoderModel" else "has"
                raise settings.refuse("architectures", f"{name} {has} {what}, and {supported}")
        if name.endswith("ForCausalLM") and spec.model.kind == "encoder_decoder":
            raise settings.refuse(
                "architectures", f"{name} is without the encoder, and {supported}"
            )


PROBLEMS: dict[str, Problem] = {
    "single_label_classification": "single_label",
    "multi_label_classification": "multi_label",
    "regression": "regression",
}


def problem_of(settings: Settings) -> Problem:
    """The meaning of a text's outputs; by default, a single output is a regression.

    Raises `InputError` for an unknown `problem_type`, and for a single class.
    """
    alone = len(labels_of(settings)) == 1
    default = "regression" if alone else "single_label_classification"
    problem = settings.choose("problem_type", PROBLEMS, default)
    if alone and problem == "single_label":
        raise settings.refuse("problem_type", "a single label leaves no choice")
    return problem


def label_keys(labels: Sequence[str], head: HeadConfig) -> Json:
    """The config keys for labels and the problem type."""
    keys: Json = {
        "num_labels": len(labels),
        "id2label": {str(i): name for i, name in enumerate(labels)},
        "label2id": {name: i for i, name in enumerate(labels)},
    }
    if isinstance(head, ClassificationHeadConfig):
        names = {problem: name for name, problem in PROBLEMS.items()}
        keys["problem_type"] = names[head.problem]
    return keys


TASKS: Mapping[type, Task] = {
    TokenHeadConfig: "tokens",
    ClassificationHeadConfig: "sequence",
    TaggingHeadConfig: "tags",
    SpanHeadConfig: "spans",
    CTCHeadConfig: "frames",
    PoolerHeadConfig: "body",
    VectorHeadConfig: "body",
    HiddenHeadConfig: "body",
}
"""The task of a class by its head."""


def architecture(head: HeadConfig, stem: str, endings: Mapping[str, Task] = ENDINGS) -> str:
    """The name of the Hugging Face class with this head. Raises `InputError` if there is none."""
    task = next((task for kind, task in TASKS.items() if isinstance(head, kind)), "own")
    for ending, ending_task in endings.items():
        if ending_task == task:
            return f"{stem}{ending}"
    raise InputError(f"this family has no {kind_of(head)} head")


def without_pooler(spec: ModelSpec, names: Collection[str]) -> ModelSpec:
    """Replace the pooler head by plain hidden states if the file has no pooler tensors."""
    model = spec.model
    assert isinstance(model, EncoderConfig)
    if not isinstance(model.head, PoolerHeadConfig) or any("pooler." in name for name in names):
        return spec
    return replace(spec, model=replace(model, head=HiddenHeadConfig()))
