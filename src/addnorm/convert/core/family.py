"""The protocol of a model family: mapping its Hugging Face config and tensors to ours."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

from addnorm.convert.core.maps import TensorMap
from addnorm.convert.core.settings import Json, Settings
from addnorm.errors import InputError
from addnorm.models import DecoderConfig, EncoderConfig, EncoderDecoderConfig, ModelConfig
from addnorm.models.inputs import TokenInputConfig
from addnorm.nn.attention import (
    AttentionConfig,
    EagerCoreConfig,
    FullPatternConfig,
    ScaledDotConfig,
    SDPACoreConfig,
)
from addnorm.nn.attention.flex import FlexCoreConfig
from addnorm.nn.feedforward import FeedForwardConfig, GatedFeedForwardConfig
from addnorm.nn.norms import LayerNormConfig, NormConfig
from addnorm.nn.positions import LearnedConfig
from addnorm.parts import kind_of

DIFFERS = "would become"
NO_PADDING = -1

EQUAL_CORES = (SDPACoreConfig, FlexCoreConfig, EagerCoreConfig)
"""Attention cores that compute the same function."""

M = TypeVar("M", DecoderConfig, EncoderConfig, EncoderDecoderConfig)


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """A model configuration with the vocabulary sizes and labels to build it with."""

    model: ModelConfig
    vocab_size: int = 0
    target_vocab_size: int | None = None
    labels: tuple[str, ...] = ()
    pad_id: int | None = None
    """The token of padding, for families whose positions begin after it; None for the usual, and
    `NO_PADDING` where the tokenizer has none."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """A Hugging Face `model_type`, or several that differ only in name.

    `read` turns a `config.json` into our configuration. `write` converts ours to a `config.json` as
    far as the family can express it; `check_expressible` finds the rest by reading it back. `maps`
    covers every tensor of the model.
    """

    model_types: tuple[str, ...]
    read: Callable[[Settings], ModelSpec]
    write: Callable[[ModelSpec], Json]
    maps: Callable[[ModelSpec], Iterable[TensorMap]]
    prefix: str = ""
    """The prefix of tensor names in a model with a head, absent in a model without one."""
    renames: tuple[tuple[str, str], ...] = ()
    """Regular expressions for tensor names in older files, and their replacements."""
    ignored: tuple[str, ...] = ()
    """Regular expressions for tensors to ignore: old buffers, and heads the model does not have."""
    ties: tuple[tuple[str, str], ...] = ()
    """Pairs of tied tensors: the first may also be stored and must then equal the second."""
    refine_by_names: Callable[[ModelSpec, Collection[str]], ModelSpec] | None = None
    """Refines the configuration by the names of the stored tensors."""
    equivalent: Callable[[ModelConfig], ModelConfig] = lambda model: model
    """Converts to an equivalent model with supported parts (`equivalents.transform_tensors`)."""

    def renamed(self, name: str) -> str:
        """The current name of a tensor."""
        for pattern, now in self.renames:
            name = re.sub(pattern, now, name)
        return name

    def ignores(self, name: str) -> bool:
        """Whether a tensor of this (current) name may be ignored."""
        return any(re.fullmatch(pattern, name) for pattern in self.ignored)


def check_expressible(family: Family, spec: ModelSpec, config: Json) -> None:
    """Raise `InputError` naming the model settings that `config` does not express."""
    model_type = config["model_type"]
    spec = replace(spec, model=family.equivalent(spec.model))
    try:
        back = family.read(Settings(config, f"{model_type}'s config.json"))
        if family.refine_by_names is not None:
            names = [name for one in family.maps(spec) for name in one.theirs]
            back = family.refine_by_names(back, names)
    except ValueError as error:
        raise InputError(f"the {model_type} family cannot express this model: {error}") from error
    changed = explicit_differences(spec.model, back.model)
    if changed:
        changes = "; ".join(
            f"model.{name} = {ours!r} {DIFFERS} {theirs!r}"
            for name, (ours, theirs) in changed.items()
        )
        raise InputError(f"the {model_type} family cannot express this model: {changes}")


def explicit(model: ModelConfig) -> ModelConfig:
    """The configuration with defaults made explicit, and training-only settings removed."""
    layers = _unrolled(model)
    attention, feedforward = _explicit_sublayers(model, bool(layers))
    bounded = isinstance(model.position, LearnedConfig)
    model = replace(
        model,
        attention=attention,
        feedforward=feedforward,
        max_len=model.max_len if bounded else 1024,
        init="xavier",
        vocab_size=None,
        layer_pattern=layers,
    )
    if isinstance(model, EncoderDecoderConfig):
        decoder = model.decoder_parts
        cross = _written_out(decoder.cross_attention_config, model.d_model)
        own = _explicit_sublayers(decoder, bool(layers))
        decoder_position = model.decoder_position or model.position
        max_len = (
            (model.decoder_max_len or model.max_len)
            if isinstance(decoder_position, LearnedConfig)
            else 1
        )
        model = replace(
            model,
            target_vocab_size=None,
            share_embeddings=model.share_embeddings and isinstance(model.input, TokenInputConfig),
            cross_attention=replace(cross, pattern=FullPatternConfig()),
            n_decoder_layers=model.n_decoder_layers or model.n_layers,
            decoder_attention=own[0],
            decoder_feedforward=own[1],
            decoder_position=decoder_position,
            decoder_max_len=max_len,
        )
    return without_dropout(model)


def _explicit_sublayers(model: ModelConfig, layers: bool) -> tuple[Any, Any]:
    """Attention and feed-forward with their sizes; `layers` have patterns of their own."""
    attention, feedforward = model.attention, model.feedforward
    if isinstance(attention, AttentionConfig):
        attention = _written_out(attention, model.d_model)
        attention = replace(attention, pattern=FullPatternConfig()) if layers else attention
    if isinstance(feedforward, FeedForwardConfig):
        feedforward = replace(feedforward, d_ff=feedforward.d_ff or 4 * model.d_model)
    if isinstance(feedforward, GatedFeedForwardConfig):
        feedforward = replace(feedforward, d_ff=feedforward.d_ff or 8 * model.d_model // 3)
    return attention, feedforward


def _written_out(attention: AttentionConfig, d_model: int) -> AttentionConfig:
    heads, score = attention.heads(d_model), attention.score
    if isinstance(score, ScaledDotConfig):
        score = replace(score, factor=score.scale(heads.d_head))
    return replace(
        attention,
        n_kv_heads=heads.n_kv_heads,
        d_head=heads.d_head,
        out_bias=attention.bias if attention.out_bias is None else attention.out_bias,
        score=score,
        core=None if isinstance(attention.core, EQUAL_CORES) else attention.core,
    )


def _unrolled(model: ModelConfig) -> tuple[Any, ...]:
    """The layer pattern expanded to all layers; empty if all layers are equal."""
    if not model.layer_pattern:
        return ()
    attention = model.attention
    assert isinstance(attention, AttentionConfig)
    unrolled = tuple(
        replace(
            layer,
            pattern=layer.pattern or attention.pattern,
            position=None if layer.position == model.position else layer.position,
        )
        for layer in (
            model.layer_pattern[i % len(model.layer_pattern)] for i in range(model.n_layers)
        )
    )
    plain = all(layer.pattern == attention.pattern and layer.position is None for layer in unrolled)
    return () if plain else unrolled


def without_dropout(settings: Any) -> Any:
    """Set every dropout rate to zero."""
    changes: dict[str, Any] = {}
    for field in fields(settings):
        value = getattr(settings, field.name)
        if field.name in ("dropout", "word_dropout", "layer_drop"):
            changes[field.name] = 0.0
        elif is_dataclass(value):
            changes[field.name] = without_dropout(value)
    return replace(settings, **changes)


def explicit_differences(one: ModelConfig, other: ModelConfig) -> dict[str, tuple[Any, Any]]:
    """The differences of both with their defaults written out.

    Those of a decoder that follows its encoder are named once.
    """
    found = differences(explicit(one), explicit(other))
    return {
        name: values
        for name, values in found.items()
        if not name.startswith(("decoder_attention", "decoder_feedforward"))
        or found.get(name.removeprefix("decoder_")) != values
    }


def differences(one: Any, other: Any, name: str = "") -> dict[str, tuple[Any, Any]]:
    """The fields in which two configurations differ, with both values."""
    if type(one) is not type(other) or not is_dataclass(one):
        kinds = tuple(getattr(x, "kind", x) if is_dataclass(x) else x for x in (one, other))
        return {} if one == other else {name.rstrip("."): (kinds[0], kinds[1])}
    found: dict[str, tuple[Any, Any]] = {}
    for field in fields(one):
        ours, theirs = getattr(one, field.name), getattr(other, field.name)
        found |= differences(ours, theirs, f"{name}{field.name}.")
    return found


# Accessors for parts of a configuration.


def decoder(spec: ModelSpec) -> DecoderConfig:
    """The decoder configuration of `spec`. Raises `InputError` for another architecture."""
    return _of(DecoderConfig, spec)


def encoder(spec: ModelSpec) -> EncoderConfig:
    """The encoder configuration of `spec`. Raises `InputError` for another architecture."""
    return _of(EncoderConfig, spec)


def one_stack(spec: ModelSpec) -> DecoderConfig | EncoderConfig:
    """The decoder or the encoder of `spec`. Raises `InputError` where both are."""
    return encoder(spec) if isinstance(spec.model, EncoderConfig) else decoder(spec)


def encoder_decoder(spec: ModelSpec) -> EncoderDecoderConfig:
    """The encoder–decoder configuration of `spec`. Raises `InputError` for another one."""
    return _of(EncoderDecoderConfig, spec)


def _of(kind: type[M], spec: ModelSpec) -> M:
    if not isinstance(spec.model, kind):
        raise InputError(f"this family has no model of kind {spec.model.kind!r}")
    return spec.model


def attention_of(model: ModelConfig) -> AttentionConfig:
    """The attention configuration of a model. Raises `InputError` for another token mixer."""
    if not isinstance(model.attention, AttentionConfig):
        raise InputError(f"no family has a {kind_of(model.attention)} where attention stands")
    return model.attention


def mlp_of(model: ModelConfig) -> FeedForwardConfig:
    """The feed-forward configuration of a model. Raises `InputError` if it is not an MLP."""
    if not isinstance(model.feedforward, FeedForwardConfig):
        raise InputError(f"this family has no {kind_of(model.feedforward)} feed-forward")
    return model.feedforward


def eps_of(norm: NormConfig | None, default: float) -> float:
    """The ε of a layer norm, or `default` for any other norm, which is refused elsewhere."""
    return norm.eps if isinstance(norm, LayerNormConfig) else default


def layers(n: int, maps: Callable[[int], Iterable[TensorMap]]) -> Iterator[TensorMap]:
    """Yield the tensor maps of every layer."""
    for i in range(n):
        yield from maps(i)
