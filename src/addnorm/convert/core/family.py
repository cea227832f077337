"""The protocol of a model family: mapping its Hugging Face config and tensors to ours."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar, runtime_checkable

from torch import Tensor, nn

from addnorm.convert.core.ahead import AheadNames
from addnorm.convert.core.differences import explicit_differences
from addnorm.convert.core.maps import TensorMap, tensor_maps
from addnorm.convert.core.settings import Json, Settings
from addnorm.errors import InputError
from addnorm.models import (
    DecoderConfig,
    DualEncoderConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    Model,
    ModelConfig,
)
from addnorm.models.layers import LayerParts
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.embed import EmbeddingConfig
from addnorm.nn.heads import TokenHeadConfig
from addnorm.nn.init import without_values
from addnorm.parts import kind_of

DIFFERS = "would become"
NO_PADDING = -1

M = TypeVar("M", DecoderConfig, EncoderConfig, EncoderDecoderConfig, DualEncoderConfig)


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """A model configuration, with the vocabulary sizes and labels needed to build it."""

    model: ModelConfig
    vocab_size: int = 0
    target_vocab_size: int | None = None
    labels: tuple[str, ...] = ()
    pad_id: int | None = None
    """The token of padding, for families whose positions begin after it; None for the usual, and
    `NO_PADDING` where the tokenizer has none."""


def build_untrained(spec: ModelSpec) -> Model:
    """Build the model with its initial weights."""
    match spec.model:
        case EncoderDecoderConfig() as model:
            return model.build(spec.vocab_size, spec.target_vocab_size)
        case DecoderConfig() | DualEncoderConfig() as model:
            return model.build(spec.vocab_size)
        case EncoderConfig() as model:
            return model.build(spec.vocab_size, n_labels=len(spec.labels) or None)


def stored_tensors(model: nn.Module) -> dict[str, Tensor]:
    """A model's parameters and persistent buffers by name; tied ones appear once."""
    tensors: dict[str, Tensor] = dict(model.named_parameters())
    aliases = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    state = model.state_dict(keep_vars=True)
    return tensors | {name: tensor for name, tensor in state.items() if name not in aliases}


def tensor_names(spec: ModelSpec) -> list[str]:
    """The names of a model's tensors; tied ones appear once."""
    with without_values():
        return [*stored_tensors(build_untrained(spec))]


@runtime_checkable
class ConfigMap(Protocol):
    """Conversion between a `config.json` and our configuration."""

    def read(self, settings: Settings) -> ModelSpec:
        """The configuration for a `config.json`. Raises `InputError` for an unsupported value."""
        ...

    def write(self, spec: ModelSpec) -> Json:
        """The keys for a model, as far as the family can express it (see `check_expressible`)."""
        ...


@dataclass(frozen=True, kw_only=True)
class Family:
    """A Hugging Face `model_type`: converts its `config.json` and its tensors to ours, and back."""

    model_type: str
    config: ConfigMap
    names: Mapping[str, str]
    """Their names of modules by ours, with `*` for the number of a layer; a model may lack some."""
    heads: Mapping[type, Mapping[str, str]] = field(default_factory=dict[type, Mapping[str, str]])
    """Their names of the parts of a head by ours, for each head whose names are its own."""
    others: Callable[[ModelSpec], Iterable[TensorMap]] = lambda spec: ()
    """The maps of tensors that differ from ours in more than the name."""
    layouts: Callable[[ModelSpec], Iterable[TensorMap]] = lambda spec: ()
    """Maps of another layout of a file, each of which is used where a file has its tensors."""
    prefix: str = ""
    """The prefix of tensor names in a model with a head, absent in a model without one."""
    renames: tuple[tuple[str, str], ...] = ()
    """Regular expressions for tensor names in older files, and their replacements."""
    ignored: tuple[str, ...] = ()
    """Regular expressions for tensors that no output depends on, such as old buffers."""
    left_aside: tuple[str, ...] = ()
    """Regular expressions for modules that our model lacks, such as heads for other tasks: a
    warning names those of a file.
    """
    constants: Callable[[ModelSpec], Mapping[str, tuple[int, ...]]] = lambda spec: {}
    """The shapes of ignored tensors that are constants of the model, such as sinusoids, by the
    regular expressions of `ignored`.
    """
    ties: tuple[tuple[str, str], ...] = ()
    """Pairs of tied tensors: the first may also be stored and must then equal the second."""
    refine_by_names: Callable[[ModelSpec, Collection[str]], ModelSpec] | None = None
    """Refines the configuration by the names of the stored tensors."""
    published_as: Json = field(default_factory=dict[str, Any])
    """The keys of files that are of this family, though their `model_type` is that of another."""
    looks_up_end: bool = False
    """Whether transformers finds the vector of a text at its end token, by `eos_token_id`."""
    ahead: AheadNames | None = None
    """Where files have the layers of multi-token prediction."""
    mixers: tuple[type, ...] = ()
    """The mixers that some layers have where others have attention, or attention of other sizes."""
    equivalent: Callable[[ModelConfig], ModelConfig] = lambda model: model
    """Converts to an equivalent model with supported parts (`equivalents.transform_tensors`)."""

    def maps(
        self, spec: ModelSpec, ours: Iterable[str], stored: Collection[str] = ()
    ) -> list[TensorMap]:
        """The maps for a model's tensors with the names `ours`.

        `stored` are the tensors of a file, without the prefix where it lacks that.
        """
        head = self.heads.get(type(spec.model.head), {})
        names = {**self.names, **{f"head.{part}": theirs for part, theirs in head.items()}}
        layouts = [
            entry
            for entry in self.layouts(spec)
            if all({name, name.removeprefix(self.prefix)} & {*stored} for name in entry.theirs)
        ]
        ours = [*ours]
        maps = tensor_maps(ours, names, [*layouts, *self.others(spec)])
        if self.ahead is None or not isinstance(spec.model, DecoderConfig):
            return maps
        return [*maps, *self.ahead.maps(spec.model, maps)]

    def refined(self, spec: ModelSpec, stored: Collection[str]) -> ModelSpec:
        """The configuration as the (current) names of a file's tensors complete it."""
        if self.refine_by_names is not None:
            spec = self.refine_by_names(spec, stored)
        if self.ahead is None:
            return spec
        return replace(spec, model=self.ahead.refine(spec.model, stored))

    def tied(self, spec: ModelSpec) -> Iterator[tuple[str, str]]:
        """Pairs of tied tensors of a model, as in `ties`."""
        yield from self.ties
        if self.ahead is not None and isinstance(spec.model, DecoderConfig):
            yield from self.ahead.ties(spec.model)

    def renamed(self, name: str) -> str:
        """A tensor's current name."""
        for pattern, now in self.renames:
            name = re.sub(pattern, now, name)
        return name

    def ignores(self, name: str) -> bool:
        """Whether a tensor with this (current) name can be ignored."""
        return any(re.fullmatch(pattern, name) for pattern in self.ignored)

    def module_left_aside(self, name: str) -> str | None:
        """The module of a tensor with this (current) name, if our model does not have it.

        None for a tensor that may be ignored.
        """
        if self.ignores(name):
            return None
        matches = (re.match(rf"({pattern})\.", name) for pattern in self.left_aside)
        return next((match[1] for match in matches if match), None)

    def check_expressible(self, spec: ModelSpec, config: Json) -> None:
        """Raise `InputError` naming the model settings that `config` does not express."""
        refused = f"the {self.model_type} family cannot express this model"
        spec = replace(spec, model=self.equivalent(spec.model))
        try:
            back = self.config.read(Settings(config, f"{self.model_type}'s config.json"))
            if self.refine_by_names is not None or self.ahead is not None:
                maps = self.maps(spec, tensor_names(spec))
                back = self.refined(back, [name for each in maps for name in each.theirs])
        except ValueError as error:
            raise InputError(f"{refused}: {error}") from error
        if changed := explicit_differences(spec.model, back.model):
            changes = (
                f"model.{name} = {ours!r} {DIFFERS} {theirs!r}"
                for name, (ours, theirs) in changed.items()
            )
            raise InputError(f"{refused}: {'; '.join(changes)}")


# Accessors for parts of a configuration.


def encoder(spec: ModelSpec) -> EncoderConfig:
    """The encoder configuration of `spec`. Raises `InputError` for another architecture."""
    return _of(EncoderConfig, spec)


def encoder_decoder(spec: ModelSpec) -> EncoderDecoderConfig:
    """The encoder–decoder configuration of `spec`. Raises `InputError` for another one."""
    return _of(EncoderDecoderConfig, spec)


def dual_encoder(spec: ModelSpec) -> DualEncoderConfig:
    """The configuration of two encoders. Raises `InputError` for another architecture."""
    return _of(DualEncoderConfig, spec)


def _of(kind: type[M], spec: ModelSpec) -> M:
    if not isinstance(spec.model, kind):
        raise InputError(f"this family has no model of kind {spec.model.kind!r}")
    return spec.model


def attention_of(model: ModelConfig | LayerParts) -> AttentionConfig:
    """The attention of a model or a layer. Raises `InputError` for another token mixer."""
    if not isinstance(model.attention, AttentionConfig):
        raise InputError(f"no family has a {kind_of(model.attention)} where attention stands")
    return model.attention


P = TypeVar("P")


def feedforward_of(model: ModelConfig | LayerParts, *kinds: type[P]) -> P:
    """The feed-forward of a model or a layer. Raises `InputError` for one of another kind."""
    if not isinstance(model.feedforward, kinds):
        raise InputError(f"this family has no {kind_of(model.feedforward)} feed-forward layers")
    return model.feedforward


def token_head_of(model: Any) -> TokenHeadConfig:
    """The token head of a model. Raises `InputError` for a custom head."""
    if isinstance(model.head, TokenHeadConfig):
        return model.head
    raise InputError(f"no other library has the head {kind_of(model.head)}")


def embedding_of(model: Any) -> EmbeddingConfig:
    """The token embedding of a model. Raises `InputError` for a custom embedding."""
    if isinstance(model.embedding, EmbeddingConfig):
        return model.embedding
    raise InputError(f"no other library has the embedding {kind_of(model.embedding)}")
