"""The definitions of token mixers, `f(config, weights, x, context)`."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from addnorm.checking.definition.attention import self_attention
from addnorm.checking.definition.cores import softmax
from addnorm.checking.definition.definitions import Definitions, MissingDefinition
from addnorm.checking.definition.layers import Tokens, Weights, activated, linear, sigmoid, under
from addnorm.checking.definition.linear_recurrences import gated_convolution, gated_delta, mamba2
from addnorm.checking.definition.norms import normalised
from addnorm.checking.definition.positions import Head, bias, met, rotated
from addnorm.checking.definition.scores import scaled_dot_scale, scored
from addnorm.checking.definition.texts import MixerContext, Texts
from addnorm.nn.attention import AttentionConfig, LatentAttentionConfig
from addnorm.nn.convolution import ConvolutionConfig
from addnorm.nn.delta import GatedDeltaConfig
from addnorm.nn.mamba import Mamba2Config
from addnorm.nn.no_sublayer import NoMixerConfig
from addnorm.nn.recurrent import RecurrentConfig
from addnorm.nn.short_convolution import GatedConvolutionConfig


def latent(config: Any, weights: Weights, x: Tokens, context: MixerContext) -> Tokens:
    """Latent attention: DeepSeek-AI 2024a, eq. 9–19, one head at a time, keys and values expanded.

    Positions act on the last features of each query, and on the key that all heads share.
    """
    n, content, turned = config.n_heads, config.d_content, config.d_position
    position, own, texts = context.position, under(weights, "position"), context.texts
    c_q = x
    if config.query_rank is not None:
        c_q = linear(weights, "q_down_proj", x)
        c_q = normalised(config.norm, under(weights, "q_norm"), c_q)
    down = linear(weights, "kv_down_proj", x)
    c = normalised(config.norm, under(weights, "kv_norm"), down[:, : config.rank])
    k_r = rotated(position, own, down[:, config.rank :], texts)
    queries = linear(weights, "q_up_proj", c_q).split(content + turned, dim=1)
    keys = linear(weights, "k_up_proj", c).split(content, dim=1)
    values = linear(weights, "v_up_proj", c).split(config.d_value, dim=1)
    scale = scaled_dot_scale(config.score, content + turned)
    seen = texts.seen(causal=context.causal, pattern=config.pattern)
    outputs: list[Tensor] = []
    for h in range(n):
        head = Head(number=h, n_heads=n, texts=texts, causal=context.causal, scale=scale)
        q_r = rotated(position, own, queries[h][:, content:], texts)
        q = torch.cat([queries[h][:, :content], met(position, own, q_r, head)], dim=1)
        scores = scored(config.score, {}, h, q, torch.cat([keys[h], k_r], dim=1))
        outputs.append(softmax(scores + bias(position, own, q_r, head), seen) @ values[h])
    return linear(weights, "out_proj", torch.cat(outputs, dim=1))


def recurrent(config: Any, weights: Weights, x: Tokens, context: MixerContext) -> Tokens:
    """A recurrence from left to right and, unless `causal`, also from right to left.

    Schuster & Paliwal 1997.
    """
    texts = context.texts
    hidden: list[Any] = [None] * len(texts)
    for tokens in map(texts.tokens, set(texts.text)):
        ahead = _read(config.cell, under(weights, "ahead"), x, tokens)
        for n in tokens:
            hidden[n] = ahead[n]
        if not context.causal:
            back = _read(config.cell, under(weights, "back"), x, tokens[::-1])
            for n in tokens:
                hidden[n] = torch.cat([ahead[n], back[n]])
    return linear(weights, "out_proj", torch.stack(hidden))


def _read(cell: str, weights: Weights, x: Tokens, tokens: list[int]) -> dict[int, Tensor]:
    """The hidden state after each token, processed in this order."""
    width = weights["weight_hh_l0"].shape[1]
    h = c = x.new_zeros(width)
    states: dict[int, Tensor] = {}
    for n in tokens:
        inputs = weights["weight_ih_l0"] @ x[n] + weights.get("bias_ih_l0", 0.0)
        again = weights["weight_hh_l0"] @ h + weights.get("bias_hh_l0", 0.0)
        h, c = _step(cell, inputs.split(width), again.split(width), h, c)
        states[n] = h
    return states


def _step(
    cell: str, inputs: tuple[Tensor, ...], again: tuple[Tensor, ...], h: Tensor, c: Tensor
) -> tuple[Tensor, Tensor]:
    """One step, from the gates' contributions of input and state, in torch's order."""
    match cell:
        case "rnn":  # Elman 1990
            return torch.tanh(inputs[0] + again[0]), c
        case "lstm":  # Hochreiter & Schmidhuber 1997; Gers et al. 2000
            i, f, g, o = (a + b for a, b in zip(inputs, again, strict=True))
            c = sigmoid(f) * c + sigmoid(i) * torch.tanh(g)
            return sigmoid(o) * torch.tanh(c), c
        case "gru":  # Cho et al. 2014, §2.3, with r after the matrix as in torch
            r, z = (sigmoid(inputs[k] + again[k]) for k in (0, 1))
            candidate = torch.tanh(inputs[2] + r * again[2])
            return z * h + (1 - z) * candidate, c
        case _:
            raise MissingDefinition(
                f"recurrent cell {cell!r} has no definition: add it to "
                "checking/definition/mixers.py"
            )


def convolution(config: Any, weights: Weights, x: Tokens, context: MixerContext) -> Tokens:
    """A convolution over neighbouring tokens (Gehring et al. 2017, §3.1)."""
    sizes = config.kernel_size if isinstance(config.kernel_size, tuple) else (config.kernel_size,)
    maps = [
        convolved(
            under(weights, f"conv.{number}"),
            x,
            context.texts,
            size - 1 if context.causal else size // 2,
        )
        for number, size in enumerate(sizes)
    ]
    return linear(weights, "out_proj", activated(config.activation, torch.cat(maps, dim=-1)))


def convolved(weights: Weights, x: Tokens, texts: Texts, left: int) -> Tokens:
    """One kernel, which begins `left` tokens before each token of a text."""
    kernel = weights["weight"]
    rows: list[Any] = [None] * len(texts)
    for tokens in map(texts.tokens, set(texts.text)):
        for p, n in enumerate(tokens):
            y = weights.get("bias", x.new_zeros(len(kernel)))
            for tap in range(kernel.shape[2]):
                if 0 <= p - left + tap < len(tokens):
                    y = y + kernel[:, :, tap] @ x[tokens[p - left + tap]]
            rows[n] = y
    return torch.stack(rows)


MIXERS = Definitions[Callable[[Any, Weights, Tokens, MixerContext], Tokens]](
    "mixer",
    "mixers.py",
    {
        AttentionConfig: self_attention,
        LatentAttentionConfig: latent,
        RecurrentConfig: recurrent,
        ConvolutionConfig: convolution,
        GatedDeltaConfig: gated_delta,
        Mamba2Config: mamba2,
        GatedConvolutionConfig: gated_convolution,
        NoMixerConfig: lambda config, weights, x, context: torch.zeros_like(x),
    },
)
