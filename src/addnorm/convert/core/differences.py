"""Differences between two configurations of a model, with their defaults written out."""

from dataclasses import fields, is_dataclass, replace
from itertools import zip_longest
from typing import Any

from addnorm.errors import InputError
from addnorm.models import DecoderConfig, DualEncoderConfig, EncoderDecoderConfig, ModelConfig
from addnorm.models.inputs import TokenInputConfig
from addnorm.models.layers import LayerConfig
from addnorm.nn.attention import (
    AttentionConfig,
    EagerCoreConfig,
    FullPatternConfig,
    ScaledDotConfig,
    SDPACoreConfig,
)
from addnorm.nn.attention.flex import FlexCoreConfig
from addnorm.nn.delta import GatedDeltaConfig
from addnorm.nn.feedforward import (
    ClampedFeedForwardConfig,
    FeedForwardConfig,
    GatedFeedForwardConfig,
)
from addnorm.nn.moe import MixtureOfExpertsConfig
from addnorm.nn.positions import LearnedConfig
from addnorm.nn.routers import SigmoidRouterConfig
from addnorm.nn.token_ahead import MultiTokenConfig
from addnorm.parts import kind_of

EQUAL_CORES = (SDPACoreConfig, FlexCoreConfig, EagerCoreConfig)
"""Attention cores that compute the same function."""


def explicit(model: ModelConfig) -> ModelConfig:
    """The configuration with defaults made explicit, and training-only settings removed."""
    stacks, own = list(model.stacks.values()), _explicit_layers(model)
    bounded = isinstance(model.position, LearnedConfig)
    changes: dict[str, Any] = {
        **own,
        "max_len": model.max_len if bounded else 1024,
        "init": "xavier",
        "vocab_size": None,
    }
    if isinstance(model, DecoderConfig) and model.mtp is not None:
        changes["mtp"] = MultiTokenConfig(depth=model.mtp.depth)
    if isinstance(model, EncoderDecoderConfig):
        decoder = model.decoder_parts
        bounded = isinstance(decoder.position, LearnedConfig)
        of_decoder = _explicit_layers(decoder, len(stacks[1]))
        changes |= {f"decoder_{name}": part for name, part in of_decoder.items()}
        cross = [_written_out(layer.cross_attention, model.d_model) for layer in stacks[1]]
        cross = [replace(attention, pattern=FullPatternConfig()) for attention in cross]
        alike = cross.count(cross[0]) == len(cross)
        changes |= {
            "target_vocab_size": None,
            "share_embeddings": model.share_embeddings
            and isinstance(model.input, TokenInputConfig),
            "cross_attention": cross[0] if alike else None,
            "n_decoder_layers": len(stacks[1]),
            "decoder_position": decoder.position,
            "decoder_max_len": (model.decoder_max_len or model.max_len) if bounded else 1,
        }
    if isinstance(model, DualEncoderConfig):
        changes |= {
            "image": explicit(model.image),
            "head": replace(model.head, log_scale=0.0, bias=None if model.head.bias is None else 0),
        }
    return without_dropout(replace(model, **changes))


def _explicit_layers(model: ModelConfig, n: int | None = None) -> dict[str, Any]:
    """The attention and feed-forward shared by all layers, and how single layers differ.

    A layer has what differs from the first; if only patterns differ, every layer has its pattern.
    """
    layers = model.layers(model.n_layers if n is None else n) or model.layers(1)
    mixers = [_written_out(layer.attention, model.d_model) for layer in layers]
    feedforwards = [_with_width(layer.feedforward, model.d_model) for layer in layers]
    patterns: list[Any] = [None] * len(layers)
    bare = [_bare(mixer) for mixer in mixers]
    if bare.count(bare[0]) == len(bare) and mixers.count(mixers[0]) < len(mixers):
        mixers, patterns = bare, [mixer.pattern for mixer in mixers]
    own = tuple(
        LayerConfig(
            attention=None if mixer == mixers[0] else mixer,
            pattern=pattern,
            feedforward=None if feedforward == feedforwards[0] else feedforward,
            norm=None if layer.norm == model.norm else layer.norm,
            position=None if layer.position == model.position else layer.position,
        )
        for layer, mixer, pattern, feedforward in zip(
            layers, mixers, patterns, feedforwards, strict=True
        )
    )
    return {
        "attention": mixers[0],
        "feedforward": feedforwards[0],
        "layer_pattern": own if any(layer != LayerConfig() for layer in own) else (),
    }


def written_out(model: ModelConfig) -> ModelConfig:
    """The configuration with all sizes, and with the decoder's parts next to the encoder's."""
    changes: dict[str, Any] = {
        "attention": _written_out(model.attention, model.d_model),
        "feedforward": _with_width(model.feedforward, model.d_model),
    }
    if isinstance(model, EncoderDecoderConfig):
        decoder = model.decoder_parts
        changes |= {
            "n_decoder_layers": model.n_decoder_layers or model.n_layers,
            "decoder_attention": _written_out(decoder.attention, model.d_model),
            "decoder_feedforward": _with_width(decoder.feedforward, model.d_model),
            "decoder_position": model.decoder_position or model.position,
            "decoder_max_len": model.decoder_max_len or model.max_len,
        }
    if isinstance(model, DualEncoderConfig):
        changes["image"] = written_out(model.image)
    return replace(model, **changes)


def _with_width(feedforward: Any, d_model: int) -> Any:
    """A feed-forward with its default width written out."""
    if isinstance(feedforward, FeedForwardConfig):
        return replace(feedforward, d_ff=feedforward.d_ff or 4 * d_model)
    if isinstance(feedforward, GatedFeedForwardConfig | ClampedFeedForwardConfig):
        return replace(feedforward, d_ff=feedforward.d_ff or 8 * d_model // 3)
    if isinstance(feedforward, MixtureOfExpertsConfig):
        expert, shared, router = feedforward.expert, feedforward.shared, feedforward.router
        if router.normalize is None:
            router = replace(router, normalize=feedforward.top_k > 1)
        if isinstance(router, SigmoidRouterConfig):  # of training alone
            router = replace(router, correction_rate=SigmoidRouterConfig().correction_rate)
        return replace(
            feedforward,
            router=router,
            expert=_with_width(expert, d_model),
            shared=_with_width(shared, d_model),
        )
    return feedforward


def _written_out(attention: Any, d_model: int) -> Any:
    """A mixer; attention has its defaults written out."""
    if isinstance(attention, GatedDeltaConfig):
        heads = attention.heads(d_model)
        sizes = {name: getattr(heads, name) for name in ("n_key_heads", "d_key", "d_value")}
        return replace(attention, **sizes, chunk=GatedDeltaConfig().chunk)
    if not isinstance(attention, AttentionConfig):
        return attention
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


def without_dropout(settings: Any) -> Any:
    """Set every dropout rate to zero."""
    changes: dict[str, Any] = {}
    for field in fields(settings):
        value = getattr(settings, field.name)
        if field.name in ("dropout", "word_dropout", "layer_drop"):
            changes[field.name] = 0.0
        elif is_dataclass(value):
            changes[field.name] = without_dropout(value)
        elif isinstance(value, tuple):
            changes[field.name] = tuple(
                without_dropout(item) if is_dataclass(item) else item for item in value
            )
    return replace(settings, **changes)


OF_DECODER = ("decoder_attention", "decoder_feedforward", "decoder_layer_pattern")


def explicit_differences(left: ModelConfig, right: ModelConfig) -> dict[str, tuple[Any, Any]]:
    """The differences of two configurations with their defaults written out.

    A difference that a decoder has from its encoder is named once.
    """
    changed = differences(explicit(left), explicit(right))
    return {
        name: values
        for name, values in changed.items()
        if not name.startswith(OF_DECODER) or changed.get(name.removeprefix("decoder_")) != values
    }


def differences(left: Any, right: Any, name: str = "") -> dict[str, tuple[Any, Any]]:
    """The fields in which two configurations differ, with both values.

    Layers are compared one by one; layers that one side lacks count as without settings.
    """
    if isinstance(left, tuple) and isinstance(right, tuple) and _are_layers(left + right):
        pairs = zip_longest(left, right, fillvalue=LayerConfig())
        by_layer = (differences(*pair, f"{name}{i}.") for i, pair in enumerate(pairs))
        return {path: values for layer in by_layer for path, values in layer.items()}
    if type(left) is not type(right) or not is_dataclass(left):
        kinds = tuple(getattr(x, "kind", x) if is_dataclass(x) else x for x in (left, right))
        return {} if left == right else {name.rstrip("."): (kinds[0], kinds[1])}
    changed: dict[str, tuple[Any, Any]] = {}
    for field in fields(left):
        ours, theirs = getattr(left, field.name), getattr(right, field.name)
        changed |= differences(ours, theirs, f"{name}{field.name}.")
    return changed


def _are_layers(values: tuple[Any, ...]) -> bool:
    return bool(values) and all(isinstance(value, LayerConfig) for value in values)


def check_alike(model: ModelConfig, reader: str, mixers: tuple[type, ...] = ()) -> None:
    """Raise `InputError` if a layer has another mixer or norm than the model.

    Patterns, positions and feed-forward layers may differ, and so may the mixer where it is one of
    `mixers`. `reader` begins the message, such as "no Hugging Face family".
    """
    if isinstance(model, DualEncoderConfig):
        check_alike(model.image, reader, mixers)
    for name, layers in model.stacks.items():
        parts = model
        if isinstance(model, EncoderDecoderConfig) and name == "decoder":
            parts = model.decoder_parts
        for i, layer in enumerate(layers):
            for field in ("attention", "norm"):
                common, own = (_bare(getattr(owner, field)) for owner in (parts, layer))
                if common != own and not isinstance(own, mixers):
                    of = f" of the {name}" * (name != "stack")
                    raise InputError(
                        f"{reader} has layers of different kinds: layer {i}{of} has the {field} "
                        f"{_differing(own, common)}, and the model {_differing(common, own)}"
                    )


def _differing(part: Any, other: Any) -> str:
    """The kind of a part, with those settings in which another part of this kind differs."""
    if type(part) is not type(other):
        return kind_of(part)
    names = [field.name for field in fields(part)]
    own = {
        name: getattr(part, name) for name in names if getattr(part, name) != getattr(other, name)
    }
    return f"{kind_of(part)} with {', '.join(f'{name} = {value}' for name, value in own.items())}"


def _bare(part: Any) -> Any:
    """A part as it is, except attention, which loses its pattern."""
    is_attention = isinstance(part, AttentionConfig)
    return replace(part, pattern=FullPatternConfig()) if is_attention else part
