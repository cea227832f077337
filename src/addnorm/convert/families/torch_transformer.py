"""Converting state dicts of `torch.nn.Transformer` and its two stacks to ours and back."""

from collections.abc import Mapping

import torch
from torch import Tensor

from addnorm.convert.core.maps import QKV, TensorMap, concatenated, tensor_maps, within
from addnorm.errors import InputError
from addnorm.models import EncoderDecoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.attention.core import EagerCore, SDPACore
from addnorm.nn.attention.multihead import CrossAttention, SelfAttention
from addnorm.nn.attention.outputs import PlainOutput
from addnorm.nn.attention.scores import DotProduct
from addnorm.nn.blocks import AnyBlock, Block, CrossBlock, Stack
from addnorm.nn.feedforward import Activation, FeedForward, FeedForwardConfig
from addnorm.nn.init import without_values
from addnorm.nn.masks import Full
from addnorm.nn.norms import LayerNorm, LayerNormConfig, NoNorm
from addnorm.nn.positions import NoPosition
from addnorm.nn.residuals import Depth, PostNorm, PostNormConfig, PreNorm, PreNormConfig

State = Mapping[str, Tensor]


def stack_from_torch(
    state: State,
    *,
    n_heads: int,
    norm_first: bool = False,
    activation: Activation = "relu",
    eps: float = 1e-5,
) -> Stack:
    """Build a stack from the state dict of an `nn.TransformerEncoder` or `nn.TransformerDecoder`.

    Sizes and the presence of biases, cross-attention and a final norm are inferred from the
    tensors; the other settings must be given. The stack has no dropout, and copies of the tensors.
    Raises `InputError` naming missing or unknown tensors.
    """
    _check_begins(state)
    d_ff, d_model = state["layers.0.linear1.weight"].shape
    n_layers = len({name.split(".")[1] for name in state if name.startswith("layers.")})
    bias, cross = "layers.0.linear1.bias" in state, "layers.0.norm3.weight" in state
    config = EncoderDecoderConfig(
        d_model=d_model,
        n_layers=n_layers,
        attention=AttentionConfig(n_heads=n_heads, bias=bias),
        feedforward=FeedForwardConfig(d_ff=d_ff, activation=activation, bias=bias),
        norm=LayerNormConfig(eps=eps, bias=bias),
        residual=PreNormConfig() if norm_first else PostNormConfig(),
        dropout=0.0,
    )
    with without_values():
        build = config.build_cross_stack if cross else config.build_stack
        stack = build(NoPosition(), Depth(encoder=n_layers, decoder=n_layers, causal=cross))
        # In torch the final norm is independent of `norm_first`.
        stack.norm = config.norm.build(d_model) if "norm.weight" in state else NoNorm()
    _fill(stack, state, _maps(stack))
    return stack


def stacks_from_torch(
    state: State,
    *,
    n_heads: int,
    norm_first: bool = False,
    activation: Activation = "relu",
    eps: float = 1e-5,
) -> tuple[Stack, Stack]:
    """Build the encoder and decoder of an `nn.Transformer` (see `stack_from_torch`)."""
    halves: list[Stack] = []
    for half in ("encoder.", "decoder."):
        half_state = {
            name.removeprefix(half): w for name, w in state.items() if name.startswith(half)
        }
        halves.append(
            stack_from_torch(
                half_state, n_heads=n_heads, norm_first=norm_first, activation=activation, eps=eps
            )
        )
    if unknown := [name for name in state if not name.startswith(("encoder.", "decoder."))]:
        raise InputError(f"no tensor of an nn.Transformer: {', '.join(unknown[:8])}")
    return halves[0], halves[1]


def torch_state(stack: Stack) -> dict[str, Tensor]:
    """Convert a stack to the state dict of an `nn.TransformerEncoder` or `nn.TransformerDecoder`.

    Raises `InputError` for parts that torch's layers lack. The arguments `nhead`, `norm_first`,
    `activation` and `layer_norm_eps` are not part of it.
    """
    for block in stack.blocks:
        _check_known(block)
    ours = {name: weight.detach() for name, weight in stack.named_parameters()}
    biases = {f"{name.rpartition('.')[0]}.bias" for name in ours if name.startswith("blocks.")}
    if 0 < len(biases & ours.keys()) < len(biases):
        odd = min(biases - ours.keys())
        raise InputError(f"torch's layers have biases everywhere or nowhere: {odd} is missing")
    state: dict[str, Tensor] = {}
    for tensor_map in _maps(stack):
        written = tensor_map.write([ours[name] for name in tensor_map.ours])
        state |= dict(zip(tensor_map.theirs, written, strict=True))
    return state


def torch_states(encoder: Stack, decoder: Stack) -> dict[str, Tensor]:
    """Convert two stacks to the state dict of an `nn.Transformer` (see `torch_state`)."""
    halves = {"encoder": torch_state(encoder), "decoder": torch_state(decoder)}
    return {f"{half}.{name}": w for half, state in halves.items() for name, w in state.items()}


def _check_begins(state: State) -> None:
    if "layers.0.linear1.weight" in state:
        return
    hint = ""
    if "encoder.layers.0.linear1.weight" in state:
        hint = ": an nn.Transformer has two stacks, use stacks_from_torch"
    raise InputError(f"layers.0.linear1.weight is missing{hint}")


def _fill(stack: Stack, state: State, maps: list[TensorMap]) -> None:
    expected_names = {name for tensor_map in maps for name in tensor_map.theirs}
    problems = [f"missing {name}" for name in sorted(expected_names - state.keys())]
    problems += [f"unexpected {name}" for name in sorted(state.keys() - expected_names)]
    if problems:
        raise InputError(f"the tensors make no torch stack: {'; '.join(problems[:8])}")
    tensors: dict[str, Tensor] = {}
    for tensor_map in maps:
        read = tensor_map.read([state[name] for name in tensor_map.theirs])
        tensors |= {name: w.detach().clone() for name, w in zip(tensor_map.ours, read, strict=True)}
    stack.load_state_dict(tensors, strict=True, assign=True)


def _maps(stack: Stack) -> list[TensorMap]:
    attentions = {"attention": "self_attn"}
    if isinstance(stack.get_submodule("blocks.0"), CrossBlock):
        attentions["cross_attention"] = "multihead_attn"
    layer = {"feedforward.up_proj": "linear1", "feedforward.down_proj": "linear2"}
    for i, part in enumerate((*attentions, "feedforward"), start=1):
        layer[f"{part}_residual.norm"] = f"norm{i}"
    joint: list[TensorMap] = []
    for ours, theirs in attentions.items():
        layer[f"{ours}.out_proj"] = f"{theirs}.out_proj"
        for i in range(len(stack.blocks)):
            name = f"blocks.{i}.{ours}"
            d_model = len(stack.get_parameter(f"{name}.q_proj.weight"))
            joint += concatenated(name, QKV, f"layers.{i}.{theirs}.in_proj_", d_model)
    names = {"norm": "norm", **within("blocks.*", "layers.*", layer)}
    return tensor_maps([name for name, _ in stack.named_parameters()], names, joint)


# Checks for parts that torch's layers lack.


def _check_known(block: AnyBlock | torch.nn.Module) -> None:
    if not isinstance(block, Block | CrossBlock):
        raise InputError(f"torch has no {type(block).__name__}")
    residuals = [block.attention_residual, block.feedforward_residual]
    if isinstance(block, CrossBlock):
        residuals.append(block.cross_attention_residual)
        _only(block.cross_attention, CrossAttention)
        _check_attention(block.cross_attention)
    for residual in residuals:
        _only(residual, PreNorm, PostNorm)
        _only(residual.get_submodule("norm"), LayerNorm)
    _only(block.feedforward, FeedForward)
    mixer = block.attention
    if not isinstance(mixer, SelfAttention):
        raise InputError(f"torch's layers have no {type(mixer).__name__}")
    _only(mixer.position, NoPosition)
    if not isinstance(mixer.pattern, Full):
        raise InputError(f"torch's layers have no {type(mixer.pattern).__name__} pattern")
    _check_attention(mixer)


def _check_attention(attention: torch.nn.Module) -> None:
    assert isinstance(attention, SelfAttention | CrossAttention)
    _only(attention.q_norm, NoNorm)
    _only(attention.k_norm, NoNorm)
    _only(attention.output, PlainOutput)
    _only(attention.core, SDPACore, EagerCore)
    if attention.k_proj.out_features != attention.q_proj.in_features:
        raise InputError("torch's layers have as many key/value heads as heads, d_model in all")
    assert isinstance(attention.core, SDPACore | EagerCore)
    score = attention.core.score
    if not _is_scaled_dot(score, attention.d_head):
        raise InputError("torch's layers have scores q·k / √d_head, and no others")


def _is_scaled_dot(score: object, d_head: int) -> bool:
    return (
        isinstance(score, DotProduct)
        and score.weight is None
        and score.softcap is None
        and score.scale == d_head**-0.5
    )


def _only(part: torch.nn.Module, *kinds: type) -> None:
    if not isinstance(part, kinds):
        raise InputError(f"torch's layers have no {type(part).__name__}")
