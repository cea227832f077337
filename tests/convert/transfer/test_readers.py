"""Who reads a norm is asked of the model: built-in parts, and parts with names of their own."""

from dataclasses import replace
from typing import Literal

import torch
from tests.convert.swapping import KINDS, difference, random, swap
from torch import nn

from addnorm.config import config
from addnorm.convert.transfer.readers import Reader, readers
from addnorm.models import DecoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.attention.outputs import GatedOutputConfig
from addnorm.nn.convolution import ConvolutionConfig
from addnorm.nn.feedforward import GatedFeedForwardConfig
from addnorm.nn.heads import TokenHeadConfig
from addnorm.nn.moe import MixtureOfExpertsConfig
from addnorm.nn.norms import RMSNormConfig
from addnorm.nn.recurrent import RecurrentConfig
from addnorm.nn.residuals import ParallelConfig
from addnorm.nn.types import HeadShape

BLOCK = "stack.blocks.0"


def of(parts: DecoderConfig, norm: str) -> list[Reader]:
    return readers(random(parts), [norm], parts)[norm]


def read(prefix: str, *names: str, bias: bool = True) -> list[Reader]:
    return [
        Reader(f"{prefix}.{name}.weight", f"{prefix}.{name}.bias" if bias else None)
        for name in names
    ]


def rounded(found: list[Reader]) -> list[Reader]:
    return [replace(one, factor=round(one.factor, 9)) for one in found]


def decoder(**parts: object) -> DecoderConfig:
    old = KINDS["decoder"]
    assert isinstance(old, DecoderConfig)
    return replace(old, **parts)  # pyright: ignore[reportArgumentType]


def test_a_shared_norm_is_read_by_both_branches() -> None:
    heads = AttentionConfig(n_heads=4, output=GatedOutputConfig())
    found = of(decoder(residual=ParallelConfig(), attention=heads), f"{BLOCK}.norm")
    assert set(rounded(found)) == {
        *read(f"{BLOCK}.attention", "q_proj", "k_proj", "v_proj"),
        Reader(f"{BLOCK}.attention.output.proj.weight", None),
        *read(f"{BLOCK}.feedforward", "up_proj"),
    }


def test_every_expert_reads_whoever_is_chosen() -> None:
    experts = MixtureOfExpertsConfig(n_experts=5, top_k=1, expert=GatedFeedForwardConfig(d_ff=6))
    found = of(decoder(feedforward=experts), f"{BLOCK}.feedforward_residual.norm")
    assert len(found) == 1 + 5 * 2
    assert Reader(f"{BLOCK}.feedforward.router.weight", None) in found


def test_a_scaled_head_has_its_factor_and_a_convolution_takes_no_beta() -> None:
    parts = decoder(head=TokenHeadConfig(tied=False, bias=True, scale="sqrt"))
    assert rounded(of(parts, "stack.norm")) == [Reader("head.weight", "head.bias", 16**-0.5)]
    found = of(decoder(attention=ConvolutionConfig()), f"{BLOCK}.attention_residual.norm")
    assert found
    assert all(one.bias is None and ".conv." in one.weight for one in found)


def test_recurrent_layers_and_the_memory_of_a_translator() -> None:
    [found] = of(
        decoder(attention=RecurrentConfig(cell="lstm")), f"{BLOCK}.attention_residual.norm"
    )
    place = f"{BLOCK}.attention.ahead"
    assert (found.weight, found.bias) == (f"{place}.weight_ih_l0", f"{place}.bias_ih_l0")
    model = random(KINDS["encoder_decoder"])
    found = readers(model, ["encoder.norm"], KINDS["encoder_decoder"])["encoder.norm"]
    names = {
        f"decoder.blocks.{i}.cross_attention.{one}_proj.weight" for i in (0, 1) for one in "kv"
    }
    assert {one.weight for one in found} == names


class Gate(nn.Module):
    """A gate with a bias, whose names are in no table."""

    def __init__(self, d_model: int, n_heads: int) -> None:
        super().__init__()
        self.opens = nn.Linear(d_model, n_heads)

    def forward(self, heads: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return heads * torch.sigmoid(self.opens(x)).transpose(1, 2)[..., None]


@config
class GateConfig:
    kind: Literal["gate"] = "gate"

    def build(self, d_model: int, heads: HeadShape, layer: int) -> Gate:
        return Gate(d_model, heads.n_heads)


class Layer(nn.Module):
    """A feed-forward layer whose names are in no table."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.inner = nn.Linear(d_model, 7)
        self.down_proj = nn.Linear(7, d_model)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(torch.tanh(self.inner(x)))


@config
class LayerConfig:
    kind: Literal["layer"] = "layer"

    def build(self, d_model: int) -> Layer:
        return Layer(d_model)


def test_custom_parts_take_beta_where_they_have_a_bias() -> None:
    heads = AttentionConfig(n_heads=4, output=GateConfig())
    swapped = swap(
        decoder(attention=heads, feedforward=LayerConfig()), norm=RMSNormConfig(eps=1e-5)
    )
    assert swapped.report.changed == ()
    assert difference(swapped.old, swapped.new) < 1e-10
    assert swapped.report.origins[f"{BLOCK}.feedforward.inner.bias"].how == "β added"
