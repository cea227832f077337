"""The definitions of the three architectures: embedding, blocks and head."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from jaxtyping import Float
from torch import Tensor

from addnorm.checking.definition.attention import cross_attention
from addnorm.checking.definition.embeddings import EMBEDDINGS, per_layer_vectors
from addnorm.checking.definition.feedforward import feedforward
from addnorm.checking.definition.heads import HEADS
from addnorm.checking.definition.layers import Tokens, Weights, activated, linear, under
from addnorm.checking.definition.linear_recurrences import convolved as convolved_alone
from addnorm.checking.definition.mixers import MIXERS, convolved
from addnorm.checking.definition.norms import Observed, normalised
from addnorm.checking.definition.placements import PLACEMENTS, Depth, sandwich
from addnorm.checking.definition.positions import embedded
from addnorm.checking.definition.texts import MixerContext, Texts
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.residuals import SandwichNormConfig
from addnorm.parts import kind_of

Logits = Float[Tensor, "rows outputs"]
OUTPUT_NORM = SandwichNormConfig(norms="output")
Sublayer = Callable[[Weights, Tokens, int], Tokens]
"""A sublayer: a function of its weights, its input and the layer index."""


def decoder_logits(
    config: Any,
    weights: Weights,
    tokens: Sequence[int],
    texts: Texts,
    observed: Observed | None = None,
) -> Logits:
    """The logits of a decoder-only model (Radford et al. 2018, eq. 2)."""
    depth = Depth(decoder=config.n_layers, causal=True)
    return _logits(config, weights, tokens, texts, depth, observed)


def encoder_logits(
    config: Any,
    weights: Weights,
    tokens: Sequence[int],
    texts: Texts,
    observed: Observed | None = None,
) -> Logits:
    """The logits of an encoder-only model (Devlin et al. 2019, §3), causal or not."""
    depth = Depth(encoder=config.n_layers)
    if config.causal:
        depth = Depth(decoder=config.n_layers, causal=True)
    return _logits(config, weights, tokens, texts, depth, observed)


def _logits(
    config: Any,
    weights: Weights,
    tokens: Sequence[int],
    texts: Texts,
    depth: Depth,
    observed: Observed | None,
) -> Logits:
    x = _embedding(config, under(weights, "embed"), tokens, texts, config.position, observed)
    sublayers = _sublayers(config, texts, causal=depth.causal)
    if getattr(config, "canon", None) is not None:
        sublayers = {name: _canon(f, texts) for name, f in sublayers.items()}
    if (per_layer := getattr(config.embedding, "per_layer", None)) is not None:
        own = under(weights, "embed.per_layer")

        def norm(x: Tokens) -> Tokens:
            return normalised(config.norm, under(own, "norm"), x, observed)

        vectors = per_layer_vectors(per_layer, own, tokens, x, norm)

        def gated(w: Weights, x: Tokens, layer: int) -> Tokens:
            gate = activated(per_layer.activation, linear(w, "gate_proj", x))
            return linear(w, "out_proj", gate * vectors[layer])

        sublayers["per_layer"] = gated
    if (convolution := getattr(config, "first_convolution", None)) is not None:
        first, first_input = under(weights, "stack.blocks.0.convolution"), x

        def joined(y: Tokens) -> Tokens:
            taps = convolved(under(first, "conv"), first_input, texts, convolution.kernel_size // 2)
            y = y + activated(convolution.activation, taps)
            return normalised(layer_parts(config, 0).norm, under(first, "norm"), y, observed)

        stack = _Stack(config, depth, sublayers, observed, joined)
    else:
        stack = _Stack(config, depth, sublayers, observed)
    x = stack.run(under(weights, "stack"), x)
    return HEADS.of(config.head)(config.head, under(weights, "head"), x, texts)


def encoder_decoder_logits(
    config: Any,
    weights: Weights,
    source: tuple[Sequence[int], Texts],
    target: tuple[Sequence[int], Texts],
    observed: Observed | None = None,
) -> Logits:
    """The logits of an encoder–decoder model (Vaswani et al. 2017, fig. 1)."""
    depth = Depth(encoder=config.n_layers, decoder=config.n_decoder_layers or config.n_layers)
    x = _embedding(config, under(weights, "source_embed"), *source, config.position, observed)
    sublayers = _sublayers(config, source[1], causal=False)
    memory = _Stack(config, depth, sublayers, observed).run(under(weights, "encoder"), x)

    seen = target[1].same_text(source[1])
    decoder = _decoder(config)

    def cross(w: Weights, x: Tokens, layer: int) -> Tokens:
        return cross_attention(_looking_back(decoder, layer), w, x, memory, seen, layer)

    of_decoder = _sublayers(decoder, target[1], causal=True)
    sublayers = {
        "attention": of_decoder["attention"],
        "cross_attention": cross,
        "feedforward": of_decoder["feedforward"],
    }
    embed = under(weights, "target_embed")
    y = _embedding(config, embed, *target, decoder.position, observed)
    depth = replace(depth, causal=True)
    y = _Stack(decoder, depth, sublayers, observed).run(under(weights, "decoder"), y)
    return HEADS.of(config.head)(config.head, under(weights, "head"), y, target[1])


def _decoder(config: Any) -> Any:
    """The configuration with the decoder's parts in place of the encoder's."""
    names = ("attention", "feedforward", "position", "layer_pattern")
    given = {name: getattr(config, f"decoder_{name}") for name in names}
    given = {name: part for name, part in given.items() if part is not None}
    return replace(config, **given, **{f"decoder_{name}": None for name in names})


def _looking_back(config: Any, layer: int) -> Any:
    """A layer's cross-attention: the model's own, or like the self-attention.

    Where neither has attention: eight heads, or the largest smaller number that divides the width.
    """
    for part in (config.cross_attention, layer_parts(config, layer).attention, config.attention):
        if isinstance(part, AttentionConfig):
            return part
    return AttentionConfig(n_heads=max(n for n in range(1, 9) if config.d_model % n == 0))


def _embedding(
    config: Any,
    weights: Weights,
    tokens: Sequence[int],
    texts: Texts,
    scheme: Any,
    observed: Observed | None,
) -> Tokens:
    def position(x: Tokens) -> Tokens:
        return embedded(scheme, under(weights, "position"), x, texts)

    def norm(norm_config: Any, name: str, x: Tokens) -> Tokens:
        return normalised(norm_config, under(weights, name), x, observed)

    embedding = config.embedding
    return EMBEDDINGS.of(embedding)(embedding, weights, tokens, position, norm)


def _sublayers(config: Any, texts: Texts, *, causal: bool) -> dict[str, Sublayer]:
    """The sublayers of a block, by name, in order."""
    earlier: dict[int, tuple[list[Tensor], list[Tensor]]] = {}

    def mix(w: Weights, x: Tokens, layer: int) -> Tokens:
        parts = layer_parts(config, layer)
        context = MixerContext(
            texts=texts, causal=causal, position=parts.position, layer=layer, earlier=earlier
        )
        return MIXERS.of(parts.attention)(parts.attention, w, x, context)

    def transform(w: Weights, x: Tokens, layer: int) -> Tokens:
        return feedforward(layer_parts(config, layer).feedforward, w, x)

    return {"attention": mix, "feedforward": transform}


def _canon(f: Sublayer, texts: Texts) -> Sublayer:
    """`f(x + conv(x))` where the weights have a kernel, else `f(x)` (Allen-Zhu 2025)."""

    def sublayer(w: Weights, x: Tokens, layer: int) -> Tokens:
        if kernel := under(w, "canon.short"):
            x = x + convolved_alone(kernel, x, texts)
        return f(under(w, "sublayer"), x, layer)

    return sublayer


class Parts(NamedTuple):
    """The parts of one layer."""

    attention: Any
    position: Any
    feedforward: Any
    norm: Any


def layer_parts(config: Any, layer: int) -> Parts:
    """The parts of a layer: the model's, replaced by those in its entry of the layer pattern.

    The layer pattern repeats (Gemma Team 2025, §2.1; Lieber et al. 2024, §3.1).
    """
    model = Parts(config.attention, config.position, config.feedforward, config.norm)
    if not config.layer_pattern:
        return model
    own = config.layer_pattern[layer % len(config.layer_pattern)]
    given = Parts(own.attention, own.position, own.feedforward, own.norm)
    attention, *others = (
        part if part is not None else models for part, models in zip(given, model, strict=True)
    )
    if own.pattern is not None:
        attention = replace(attention, pattern=own.pattern)
    return Parts(attention, *others)


@dataclass(frozen=True)
class _Stack:
    """The blocks of a stack, with a final norm if the placement has one."""

    config: Any
    depth: Depth
    sublayers: Mapping[str, Sublayer]
    observed: Observed | None
    joined: Callable[[Tokens], Tokens] = lambda y: y
    """What joins the output of the first layer."""

    def run(self, weights: Weights, x: Tokens) -> Tokens:
        n_layers = self.depth.decoder if self.depth.causal else self.depth.encoder
        residual, last = self.config.residual, under(weights, "norm")
        placement = PLACEMENTS.of(residual)
        streams = placement.streams
        x = x if streams is None else streams.start(residual, x)
        for i in range(n_layers):
            x = self.block(under(weights, f"blocks.{i}"), x, i)
            x = self.joined(x) if i == 0 else x
        if streams is not None:
            x, last = streams.collapsed(residual, last, x), under(last, "norm")
        return normalised(self.config.norm, last, x, self.observed) if placement.final else x

    def _present(self, layer: int) -> list[str]:
        """The sublayers of a layer, without those that are of the kind `none`."""
        parts = layer_parts(self.config, layer)._asdict()
        return [n for n in self.sublayers if n not in parts or kind_of(parts[n]) != "none"]

    def block(self, weights: Weights, x: Tokens, layer: int) -> Tokens:
        """Apply one block: every sublayer in its placement."""
        residual = self.config.residual
        placement = PLACEMENTS.of(residual)

        def norm(path: str, x: Tokens) -> Tokens:
            kind = layer_parts(self.config, layer).norm
            return normalised(kind, under(weights, path), x, self.observed)

        def sublayer(name: str) -> Callable[[Tokens], Tokens]:
            return lambda x: self.sublayers[name](under(weights, name), x, layer)

        if placement.block is not None:
            branches = {name: sublayer(name) for name in self.sublayers}
            return placement.block(residual, norm, x, branches)
        present = self._present(layer)
        for name in present:
            here, f = _beneath(norm, f"{name}_residual"), sublayer(name)
            of_placement = under(weights, f"{name}_residual")
            if placement.streams is not None:
                x = placement.streams.sublayer(residual, of_placement, here, x, f)
                continue
            assert placement.sublayer is not None
            depth = replace(self.depth, layer=layer, first=name == present[0], weights=of_placement)
            if name == "per_layer":  # its output has a norm, whatever the placement of others
                x = sandwich(OUTPUT_NORM, here, x, f, depth)
                continue
            x = placement.sublayer(residual, here, x, f, depth)
        return x


def _beneath(norm: Callable[[str, Tokens], Tokens], path: str) -> Callable[[str, Tokens], Tokens]:
    return lambda name, x: norm(f"{path}.{name}", x)
