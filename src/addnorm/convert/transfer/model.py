"""Transferring the weights of a trained model to another configuration, exactly if possible.

The origin of every weight of the new model is recorded: exact (unchanged, or rearranged without
changing the function), folded (changed so that the function stays the same), derived (computed from
old weights, with a different function) or new.
"""

import copy
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from addnorm.convert.core.differences import differences, explicit, explicit_differences
from addnorm.convert.transfer.folding import (
    Weights,
    fold_layernorm,
    folding_obstacle,
    folds_layernorm,
    nonzero_betas,
    readers,
    with_folding_targets,
)
from addnorm.convert.transfer.rules import (
    Kind,
    Origin,
    TransferContext,
    gain_offset,
    norm_of,
    transfer_weight,
)
from addnorm.convert.transfer.verified import unequal
from addnorm.convert.weights.mapped import name_of
from addnorm.models import EncoderConfig, EncoderDecoderConfig, Model, ModelConfig
from addnorm.models.ledger import Ledger, check_as_built
from addnorm.nn.blocks import check_unshared
from addnorm.nn.heads import TokenHeadConfig, predicts_tokens
from addnorm.nn.init import without_values
from addnorm.nn.moe import MixtureOfExpertsConfig
from addnorm.nn.norms import OffsetRMSNormConfig, RMSNormConfig
from addnorm.parts import kind_of

Layers = Mapping[str, Sequence[int]]
"""For each stack, the old layer that each new layer comes from, counted from 0."""


@dataclass(frozen=True)
class TransferReport:
    """The origin of every weight of the new model, and what was lost."""

    origins: dict[str, Origin]
    unused: tuple[str, ...]
    """Weights of the old model that the new one does not use."""
    changed: tuple[str, ...]
    """The reasons why the new model computes a different function; empty if it is the same."""


def evenly_spaced_layers(n_old: int, n_new: int) -> tuple[int, ...]:
    """Choose `n_new` evenly spaced layers out of `n_old`: every other one, or each twice.

    Sanh et al. 2019, §3, and Fan et al. 2020, §3.2, keep every other layer.
    """
    return tuple(i * n_old // n_new for i in range(n_new))


def layer_counts(model: ModelConfig) -> dict[str, int]:
    """The number of layers of each stack of a model."""
    return {name: len(layers) for name, layers in model.stacks.items()}


def config_with_folding(
    old: Model, old_config: ModelConfig, new_config: ModelConfig
) -> ModelConfig:
    """Add what exact folding needs to `new_config`: an untied head, and biases for β.

    The configuration is unchanged if nothing is to be folded, or if it cannot be.
    """
    if not folds_layernorm(old_config, new_config):
        return new_config
    ready = with_folding_targets(new_config, biases=bool(nonzero_betas(old.state_dict())))
    return new_config if folding_obstacle(old_config, ready) else ready


@torch.no_grad()
def transfer_weights(
    old: Model,
    old_config: ModelConfig,
    new: Model,
    new_config: ModelConfig,
    layers: Layers | None = None,
) -> TransferReport:
    """Transfer the weights of `old` to `new`, and report the origin of each.

    By default `layers` are evenly spaced. The rules are in `RULES`; LayerNorm is folded last, into
    the transferred weights. All is computed in float64, and rounded once, to the dtype of `new`.
    If the function should be unchanged, this is verified on random inputs, before and after the
    rounding.
    Raises `InputError` if `old` does not match `old_config`.
    """
    for model in (old, new):
        check_unshared(model, "a swap of parts")
    state = {
        _placed(name, new_config): _wide(weight) for name, weight in _state(old, old_config).items()
    }
    counts = layer_counts(old_config), layer_counts(new_config)
    chosen = {name: evenly_spaced_layers(counts[0][name], n) for name, n in counts[1].items()}
    chosen |= {name: tuple(places) for name, places in (layers or {}).items()}
    old_names = (_placed(name, new_config) for name in _named(old))
    source_names = {new_name for name in old_names for new_name in _renamed(name, chosen)}
    source = {new: weight for name, weight in state.items() for new in _renamed(name, chosen)}
    wide = copy.deepcopy(new).cpu().double()
    targets = _named(wide)
    context = TransferContext(old_config, new_config, source, targets, chosen)
    weights: Weights = {}
    origins: dict[str, Origin] = {}
    for name in targets:
        weights[name], origins[name] = transfer_weight(context, name)
    changed = _fold(context, weights, origins, wide)
    rounded = _named(new)
    for name, target in targets.items():
        target.copy_(weights[name])
        rounded[name].copy_(weights[name])
    unused = tuple(sorted(source_names - context.used))
    changed += _moved(counts[0], chosen) + _resized(context)
    changed += _different(
        _EquivalenceCheck(context, origins, unused),
        {reason.partition(":")[0] for reason in changed},
    )
    dtype = next(new.parameters()).dtype
    for model in (wide, new):  # as computed, and as rounded
        if not changed and (why := unequal(old, model, new_config)) is not None:
            rounded_to = "" if model is wide else f"rounded to {name_of(dtype)}, "
            changed = [f"not the same function: {rounded_to}{why}"]
    return TransferReport(origins, unused, tuple(dict.fromkeys(changed)))


def _wide(x: Tensor) -> Tensor:
    return x.cpu().double() if x.is_floating_point() else x.cpu()


def _state(old: Model, config: ModelConfig) -> Weights:
    """The weights of a model, which must otherwise match its configuration."""
    ledger = Ledger(old, "A transfer of weights")
    weights = ledger.state()
    sizes = {
        name.partition("_")[0]: len(weight)
        for name, weight in weights.items()
        if name.endswith("embed.tokens.weight")
    }
    with without_values():
        match config:
            case EncoderDecoderConfig():
                built = config.build(sizes.get("source", sizes["target"]), sizes["target"])
            case EncoderConfig():
                maps = ("head.proj.weight", "head.compare.proj.weight")
                n_outputs = next((len(weights[name]) for name in maps if name in weights), None)
                n_tokens = n_outputs or 0 if predicts_tokens(config.head) else 0
                built = config.build(next(iter(sizes.values()), n_tokens), n_outputs)
            case _:
                built = config.build(next(iter(sizes.values())))
    check_as_built(ledger, old, built)
    ledger.close()
    return weights


def _named(model: nn.Module) -> Weights:
    """Parameters and persistent buffers by name; tied ones appear once."""
    saved = model.state_dict().keys()
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return {name: tensor.detach() for name, tensor in tensors if name in saved}


def _placed(name: str, new: ModelConfig) -> str:
    """The name of a weight of a sublayer, which Canon layers of the new model stand before."""
    if getattr(new, "canon", None) is None:
        return name.replace(".sublayer.", ".")
    if ".canon." in name or ".sublayer." in name:
        return name
    return re.sub(r"(\.blocks\.\d+\.(attention|feedforward)\.)", r"\1sublayer.", name)


def _renamed(name: str, layers: Layers) -> Iterator[str]:
    """Yield the names that an old weight has in the new model, if any."""
    if match := re.fullmatch(r"(stack|encoder|decoder)\.blocks\.(\d+)\.(.*)", name):
        places = layers[match[1]]
        yield from (
            f"{match[1]}.blocks.{new}.{match[3]}"
            for new, old in enumerate(places)
            if old == int(match[2])
        )
    elif match := re.fullmatch(r"exits\.(\d+)\.(.*)", name):
        places = layers["stack"]
        yield from (
            f"exits.{new}.{match[2]}"
            for new, old in enumerate(places, 1)
            if old + 1 == int(match[1])
        )
    else:
        yield name


# Checks whether the function stays the same.


def _fold(
    context: TransferContext, weights: Weights, origins: dict[str, Origin], new: Model
) -> list[str]:
    """Fold LayerNorm into RMSNorm if needed; return the reasons if this is not exact."""
    if not folds_layernorm(context.old, context.new):
        return []
    beta = nonzero_betas(context.source)
    if (why := folding_obstacle(context.old, context.new)) is not None:
        lost = "β dropped, not exact" if beta else "not exact"
        return [f"norm: layernorm → {kind_of(context.new.norm)}: {lost}: {why}"]
    norms = [norm for norm in beta if f"{norm}.weight" in weights]
    done = fold_layernorm(weights, beta, context.new, readers(new, norms, context.new))
    context.used |= {f"{norm}.bias" for norm in beta}
    for name, origin in origins.items():
        model_norm = norm_of(context.new, name) is context.new.norm
        origins[name] = _folded(origin, done.how.get(name), gain=model_norm)
    parts = dict.fromkeys(re.sub(r"\.\d+\.", ".*.", dropped_name) for dropped_name in done.dropped)
    return [f"norm: β dropped before {part}, not exact" for part in parts]


def _folded(origin: Origin, how: str | None, *, gain: bool) -> Origin:
    """The origin of a weight after folding; `gain` marks a possible gain γ of a norm."""
    if how is not None:
        kinds: dict[Kind, Kind] = {"exact": "folded"}
        note = "; ".join(part for part in (origin.how, how) if part not in ("", "zero"))
        return Origin(kinds.get(origin.kind, origin.kind), note)
    if gain and origin.kind == "derived" and origin.how.startswith("γ"):
        return Origin("exact" if origin.how == "γ kept" else "folded", origin.how)
    return origin


def _moved(counts: Mapping[str, int], layers: Layers) -> list[str]:
    """The stacks whose layers were dropped, repeated or reordered."""
    return [
        f"{'n_decoder_layers' if stack == 'decoder' else 'n_layers'}: "
        f"layers {' '.join(map(str, chosen))} of {counts[stack]}"
        for stack, chosen in layers.items()
        if tuple(chosen) != tuple(range(counts[stack]))
    ]


def _resized(context: TransferContext) -> list[str]:
    """The vocabularies whose size changed."""
    return [
        f"vocab_size: {len(x)} → {len(context.start[name])}"
        for name, x in context.source.items()
        if name.endswith("embed.tokens.weight")
        and name in context.start
        and len(x) != len(context.start[name])
    ]


@dataclass(frozen=True)
class _EquivalenceCheck:
    """Decides which configuration differences leave the function unchanged."""

    context: TransferContext
    origins: Mapping[str, Origin]
    unused: Sequence[str]

    def same(self, path: str) -> bool:
        """Whether this difference leaves the function unchanged, given the weights."""
        rules: dict[str, Callable[[], bool]] = {
            "bias": self.unused_biases_are_zero,
            "out_bias": self.unused_biases_are_zero,
            "d_ff": lambda: self.exact(r"\.feedforward\."),
            "n_kv_heads": lambda: self.exact(r"\.[kv]_proj\."),
            "tied": self.was_tied,
            "share_embeddings": self.was_shared,
            "max_len": lambda: True,
            "decoder_max_len": lambda: True,
            "balance": lambda: True,
            "position": self.became_a_table,
            "decoder_position": self.became_a_table,
            "feedforward": lambda: self.became_experts(path),
        }
        if path == "norm":
            return self.norms_agree()
        last = _last(path)
        if "layer_pattern." in path and last == "position":
            return False
        return last in rules and rules[last]()

    def exact(self, pattern: str) -> bool:
        """Whether all weights matching this pattern are exact or folded."""
        named = (origin for name, origin in self.origins.items() if re.search(pattern, name))
        return all(origin.kind in ("exact", "folded") for origin in named)

    def unused_biases_are_zero(self) -> bool:
        """Whether all biases that the new model lacks were zero."""
        biases = (name for name in self.unused if re.search(r"bias[^.]*$", name))
        return not any(bool(self.context.source[name].any()) for name in biases)

    def was_tied(self) -> bool:
        """Whether the old model had a tied head."""
        head = self.context.old.head
        return isinstance(head, TokenHeadConfig) and head.tied

    def was_shared(self) -> bool:
        """Whether the old model shared its embeddings."""
        return (
            isinstance(self.context.old, EncoderDecoderConfig) and self.context.old.share_embeddings
        )

    def became_a_table(self) -> bool:
        """Whether sinusoidal positions became a learned table of the same values."""
        pattern = r"embed\.position\."
        return any(re.search(pattern, name) for name in self.origins) and self.exact(pattern)

    def became_experts(self, path: str) -> bool:
        """Whether every expert copies the dense layer, and gates sum to one."""
        old, new = (
            _feedforward_at(explicit(config), path)
            for config in (self.context.old, self.context.new)
        )
        if not isinstance(new, MixtureOfExpertsConfig) or new.shared is not None:
            return False
        router = new.router
        if router.scale != 1 or not (
            new.top_k > 1 if router.normalize is None else router.normalize
        ):
            return False
        return not differences(old, new.expert)

    def norms_agree(self) -> bool:
        """Whether both kinds of norm compute the same function, after folding."""
        old, new = self.context.old, self.context.new
        match old.norm, new.norm:
            case (
                RMSNormConfig(eps=eps) | OffsetRMSNormConfig(eps=eps),
                RMSNormConfig(eps=new_eps) | OffsetRMSNormConfig(eps=new_eps),
            ):
                lost = gain_offset(new.norm) is None and gain_offset(old.norm) is not None
                return eps == new_eps and not lost
            case _:
                return folds_layernorm(old, new) and folding_obstacle(old, new) is None


def _feedforward_at(model: ModelConfig, path: str) -> Any:
    """The feed-forward at a path: of the model, its decoder, or one layer of either.

    None for a layer that the model does not have.
    """
    match = re.fullmatch(r"(decoder_)?layer_pattern\.(\d+)\.feedforward", path)
    if match is None:
        return getattr(model, path)
    stacks, layer = model.stacks, int(match[2])
    layers = stacks["decoder" if match[1] else next(iter(stacks))]
    return layers[layer].feedforward if layer < len(layers) else None


def _different(check: _EquivalenceCheck, reported: set[str]) -> list[str]:
    """The configuration differences that change the function, if not reported already.

    Consequences of other differences, such as the head width of the head count, are left out.
    """
    old, new = check.context.old, check.context.new
    written = differences(old, new)
    differing = {
        path: f"{path}: {_shown(old, path, was)} → {_shown(new, path, now)}"
        f"{WHY.get(_last(path), '')}"
        for path, (was, now) in explicit_differences(old, new).items()
        if path not in reported and not check.same(path)
    }
    return [line for path, line in differing.items() if path in written] or list(differing.values())


WHY = {"n_kv_heads": ": the heads of a group share their mean"}
"""Additional notes on changes."""


def _last(path: str) -> str:
    return path.rpartition(".")[2]


def _shown(model: ModelConfig, path: str, value: object) -> str:
    """A value for a message; a part that a layer lacks is the model's."""
    match = re.fullmatch(r"(decoder_)?layer_pattern\.(\d+)\.(\w+)", path)
    if value is not None or match is None:
        return _short(value)
    layers = model.stacks["decoder" if match[1] else next(iter(model.stacks))]
    layer = int(match[2])
    part = getattr(layers[layer], match[3], None) if layer < len(layers) else None
    return f"{_short(part)} (of the model)" if part is not None else "none"


def _short(value: object) -> str:
    text = getattr(value, "kind", None) or str(value)
    return text if len(text) <= 40 else f"{text[:39]}…"
