"""A family of foreign checkpoints: how its configuration and its tensors stand for ours."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

from addnorm.convert.core.maps import Map
from addnorm.convert.core.settings import Json, Settings
from addnorm.errors import InputError
from addnorm.models import DecoderConfig, EncoderConfig, EncoderDecoderConfig, ModelConfig
from addnorm.models.inputs import TokenInputConfig
from addnorm.nn.attention import AttentionConfig, FullPatternConfig, ScaledDotConfig
from addnorm.nn.feedforward import FeedForwardConfig, GatedFeedForwardConfig
from addnorm.nn.norms import LayerNormConfig, NormConfig
from addnorm.nn.positions import LearnedConfig

DIFFERS = "would become"

M = TypeVar("M", DecoderConfig, EncoderConfig, EncoderDecoderConfig)


@dataclass(frozen=True, kw_only=True)
class Shaped:
    """A model configuration, with the sizes that it is built with."""

    model: ModelConfig
    vocab_size: int = 0
    target_vocab_size: int | None = None
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Family:
    """One foreign `model_type`, or several that share everything but a name.

    `read` makes ours of a `config.json`, `write` a `config.json` of ours as far as the family can
    say it (what it cannot is found by reading it back), `maps` names every tensor of the model.
    """

    model_types: tuple[str, ...]
    read: Callable[[Settings], Shaped]
    write: Callable[[Shaped], Json]
    maps: Callable[[Shaped], Iterable[Map]]
    prefix: str = ""
    """What stands before the names of a model's body when it has a head, and is left out when not.
    """
    renames: tuple[tuple[str, str], ...] = ()
    """Patterns of names in older files, and what stands for them now."""
    ignored: tuple[str, ...] = ()
    """Patterns of tensors that may be there though the model does not need them: buffers in older
    files, and heads that its architecture leaves out."""
    ties: tuple[tuple[str, str], ...] = ()
    """Tensors of theirs that may be there though they are tied to the second, and must equal it."""
    by_names: Callable[[Shaped, Collection[str]], Shaped] | None = None
    """What the names of the tensors say that `config.json` does not."""
    restated: Callable[[ModelConfig], ModelConfig] = lambda model: model
    """The same model with parts that the family has: `equivalent.restated` has its tensors."""

    def renamed(self, name: str) -> str:
        """The name as it is today."""
        for pattern, now in self.renames:
            name = re.sub(pattern, now, name)
        return name

    def ignores(self, name: str) -> bool:
        """Whether a tensor of this name, as it is today, may be there without being needed."""
        return any(re.fullmatch(pattern, name) for pattern in self.ignored)


def check_expressible(family: Family, shaped: Shaped, config: Json) -> None:
    """Raise `InputError` where `config` does not say all of the model, naming what it cannot."""
    model_type = config["model_type"]
    shaped = replace(shaped, model=family.restated(shaped.model))
    try:
        back = family.read(Settings(config, f"{model_type}'s config.json"))
        if family.by_names is not None:
            names = [name for one in family.maps(shaped) for name in one.theirs]
            back = family.by_names(back, names)
    except ValueError as error:
        raise InputError(f"the {model_type} family cannot express this model: {error}") from error
    changed = differences(explicit(shaped.model), explicit(back.model))
    if changed:
        said = "; ".join(
            f"model.{name} = {ours!r} {DIFFERS} {theirs!r}"
            for name, (ours, theirs) in changed.items()
        )
        raise InputError(f"the {model_type} family cannot express this model: {said}")


def explicit(model: ModelConfig) -> ModelConfig:
    """The configuration with defaults written out, and without what only training needs."""
    cycle, attention = _unrolled(model), model.attention
    if isinstance(attention, AttentionConfig):
        attention = _written_out(attention, model.d_model)
        attention = replace(attention, pattern=FullPatternConfig()) if cycle else attention
    feedforward = model.feedforward
    if isinstance(feedforward, FeedForwardConfig):
        feedforward = replace(feedforward, d_ff=feedforward.d_ff or 4 * model.d_model)
    if isinstance(feedforward, GatedFeedForwardConfig):
        feedforward = replace(feedforward, d_ff=feedforward.d_ff or 8 * model.d_model // 3)
    bounded = isinstance(model.position, LearnedConfig)
    model = replace(
        model,
        attention=attention,
        feedforward=feedforward,
        max_len=model.max_len if bounded else 1024,
        init="xavier",
        vocab_size=None,
        cycle=cycle,
    )
    if isinstance(model, EncoderDecoderConfig):
        cross = _written_out(model.looking, model.d_model)
        own = model.decoder_position or model.position
        max_len = (model.decoder_max_len or model.max_len) if isinstance(own, LearnedConfig) else 1
        model = replace(
            model,
            target_vocab_size=None,
            share_embeddings=model.share_embeddings and isinstance(model.input, TokenInputConfig),
            cross_attention=replace(cross, pattern=FullPatternConfig()),
            n_decoder_layers=model.n_decoder_layers or model.n_layers,
            decoder_position=own,
            decoder_max_len=max_len,
        )
    return without_dropout(model)


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
        core=None,
    )


def _unrolled(model: ModelConfig) -> tuple[Any, ...]:
    """The cycle layer by layer, each layer with all that is its own; empty where none has any."""
    if not model.cycle:
        return ()
    attention = model.attention
    assert isinstance(attention, AttentionConfig)
    every = tuple(
        replace(
            own,
            pattern=own.pattern or attention.pattern,
            position=None if own.position == model.position else own.position,
        )
        for own in (model.cycle[i % len(model.cycle)] for i in range(model.n_layers))
    )
    plain = all(own.pattern == attention.pattern and own.position is None for own in every)
    return () if plain else every


def without_dropout(settings: Any) -> Any:
    """The settings with every rate of dropout at zero."""
    changes: dict[str, Any] = {}
    for field in fields(settings):
        value = getattr(settings, field.name)
        if field.name in ("dropout", "word_dropout"):
            changes[field.name] = 0.0
        elif is_dataclass(value):
            changes[field.name] = without_dropout(value)
    return replace(settings, **changes)


def differences(one: Any, other: Any, name: str = "") -> dict[str, tuple[Any, Any]]:
    """The values of both for each field in which two configurations differ."""
    if type(one) is not type(other) or not is_dataclass(one):
        kinds = tuple(getattr(x, "kind", x) if is_dataclass(x) else x for x in (one, other))
        return {} if one == other else {name.rstrip("."): (kinds[0], kinds[1])}
    found: dict[str, tuple[Any, Any]] = {}
    for field in fields(one):
        ours, theirs = getattr(one, field.name), getattr(other, field.name)
        found |= differences(ours, theirs, f"{name}{field.name}.")
    return found


# What families ask of a configuration.


def decoder(shaped: Shaped) -> DecoderConfig:
    """The decoder of `shaped`. Raises `InputError` for another architecture."""
    return _of(DecoderConfig, shaped)


def encoder(shaped: Shaped) -> EncoderConfig:
    """The encoder of `shaped`. Raises `InputError` for another architecture."""
    return _of(EncoderConfig, shaped)


def encoder_decoder(shaped: Shaped) -> EncoderDecoderConfig:
    """The encoder–decoder of `shaped`. Raises `InputError` for another architecture."""
    return _of(EncoderDecoderConfig, shaped)


def _of(kind: type[M], shaped: Shaped) -> M:
    if not isinstance(shaped.model, kind):
        raise InputError(f"this family has no model of kind {shaped.model.kind!r}")
    return shaped.model


def attention_of(model: ModelConfig) -> AttentionConfig:
    """The attention of a model. Raises `InputError` where another mixer stands there."""
    if not isinstance(model.attention, AttentionConfig):
        raise InputError(f"no family has a {model.attention.kind} where attention stands")
    return model.attention


def mlp_of(model: ModelConfig) -> FeedForwardConfig:
    """The feed-forward layers of a model. Raises `InputError` where they are of another kind."""
    if not isinstance(model.feedforward, FeedForwardConfig):
        raise InputError(f"this family has no {model.feedforward.kind} feed-forward")
    return model.feedforward


def eps_of(norm: NormConfig | None, default: float) -> float:
    """The ε of a layer norm; of another norm the default, for that one is refused by its kind."""
    return norm.eps if isinstance(norm, LayerNormConfig) else default


def layers(n: int, maps: Callable[[int], Iterable[Map]]) -> Iterator[Map]:
    """The maps of every layer."""
    for i in range(n):
        yield from maps(i)
