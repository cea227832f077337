"""A family's large configuration with reduced sizes, for a model that is built twice."""

from dataclasses import replace
from math import gcd
from typing import Any

from addnorm.convert.core.differences import explicit_differences
from addnorm.convert.core.family import Family, ModelSpec
from addnorm.convert.core.settings import Json, Settings
from addnorm.convert.folder import read_config
from addnorm.errors import InputError
from addnorm.models import EncoderDecoderConfig, ModelConfig
from addnorm.models.layers import entries_of
from addnorm.nn.attention import AttentionConfig, LatentAttentionConfig
from addnorm.nn.delta import GatedDeltaConfig
from addnorm.nn.mamba import Mamba2Config
from addnorm.nn.moe import MixtureOfExpertsConfig

MOST_LAYERS, MOST_TOKENS, MOST_EXPERTS = 8, 512, 8
TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")


def small_settings(family: Family, spec: ModelSpec, settings: Settings) -> tuple[Json, ModelSpec]:
    """A configuration's keys with reduced sizes, and the model for them.

    Only those keys change that the family writes differently for the smaller model, or than the
    file has them. Raises `InputError` if the smaller model is not read from them.
    """
    small = replace(spec, model=small_model(spec.model), **_vocabularies(spec))
    where = f"{settings.where} with reduced sizes"
    advice = "give a folder with a config.json of smaller sizes"
    try:
        before, after = family.config.write(spec), family.config.write(small)
    except InputError as error:
        raise InputError(f"{where}: {error}: {advice}") from error
    changed = {
        key: value
        for key, value in after.items()
        if before.get(key) != value or settings.tree.get(key, value) != before.get(key)
    }
    present = [key for key in TOKENS if settings.tree.get(key) is not None]
    tree = {**settings.tree, **changed, **{key: i for i, key in enumerate(present)}}
    read = read_config(family, Settings(tree, where))
    if differing := explicit_differences(small.model, read.model):
        name, (ours, theirs) = next(iter(differing.items()))
        raise InputError(f"{where}: {name} = {ours!r} would be read as {theirs!r}: {advice}")
    return tree, read


def small_model(model: ModelConfig) -> ModelConfig:
    """The model with few layers, heads and tokens; heads keep their width."""
    attention = model.attention
    if isinstance(attention, LatentAttentionConfig):
        d_head = attention.d_value
    else:
        assert isinstance(attention, AttentionConfig)
        d_head = attention.heads(model.d_model).d_head
    d_model = _fewer_heads(attention, model.d_model).n_heads * d_head

    def fewer_heads(part: Any) -> Any:
        if isinstance(part, Mamba2Config):
            n = max(1, part.n_heads * d_model // model.d_model)
            return replace(part, n_heads=n, n_groups=gcd(n, part.n_groups))
        return _fewer_heads(part, model.d_model)

    def narrow(part: Any) -> Any:
        return _narrow(part, d_model)

    small = model.with_parts("attention", fewer_heads).with_parts("feedforward", narrow)
    n = min(model.n_layers, max(2, min(len(model.layer_pattern), MOST_LAYERS)))
    changes: dict[str, Any] = {"n_layers": n}
    changes["layer_pattern"] = entries_of(small.layer_pattern, range(n))
    if isinstance(small, EncoderDecoderConfig):
        changes["n_decoder_layers"] = small.n_decoder_layers and min(small.n_decoder_layers, 2)
    return replace(small, d_model=d_model, **changes)


def _fewer_heads(part: Any, d_model: int) -> Any:
    """Reduce to two key/value heads of two queries each, keeping an explicit head width."""
    if isinstance(part, LatentAttentionConfig):
        rank, query_rank = min(part.rank, 16), part.query_rank and min(part.query_rank, 16)
        return replace(part, n_heads=min(part.n_heads, 2), rank=rank, query_rank=query_rank)
    if isinstance(part, GatedDeltaConfig):
        n = part.n_key_heads or part.n_heads
        n_keys, share = min(n, 2), min(part.n_heads // n, 2)
        return replace(part, n_heads=n_keys * share, n_key_heads=n_keys)
    if not isinstance(part, AttentionConfig):
        return part
    heads = part.heads(d_model)
    n_kv = min(heads.n_kv_heads, 2)
    n = n_kv * min(heads.n_heads // heads.n_kv_heads, 2) if n_kv > 1 else min(heads.n_heads, 2)
    return replace(part, n_heads=n, n_kv_heads=part.n_kv_heads and n_kv)


def _narrow(part: Any, d_model: int) -> Any:
    if isinstance(part, MixtureOfExpertsConfig):
        n = min(part.n_experts, MOST_EXPERTS)
        return replace(
            part,
            n_experts=n,
            top_k=min(part.top_k, n),
            expert=_narrow(part.expert, d_model // 4),
            router=replace(part.router, n_groups=1, top_groups=1),
            shared=part.shared and _narrow(part.shared, d_model // 4),
        )
    return replace(part, d_ff=2 * d_model) if hasattr(part, "d_ff") else part


def _vocabularies(spec: ModelSpec) -> dict[str, Any]:
    sizes = {"vocab_size": spec.vocab_size, "target_vocab_size": spec.target_vocab_size}
    return {name: size and min(size, MOST_TOKENS) for name, size in sizes.items()}
