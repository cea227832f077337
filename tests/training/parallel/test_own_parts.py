"""Parts from outside that compute with other tokens or rows are named; others are left alone."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from tests.training import tiny
from tests.training.parallel.cells import OWN, usual
from torch import Tensor, nn

from addnorm.checking.case import Case
from addnorm.checking.matrix import Cell
from addnorm.errors import InputError
from addnorm.models import DecoderConfig, EncoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.context import Context
from addnorm.nn.embed import Embedding
from addnorm.nn.masks import Full
from addnorm.nn.norms import BatchNorm, NoNorm
from addnorm.training.parallel.own_parts import (
    check_batch_norms,
    check_rows_alone,
    check_tokens_alone,
)


class Doubled(nn.Module):
    """A feed-forward layer of one's own of each token alone."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * x


class Shifted(nn.Module):
    """A feed-forward layer of one's own that reads the token before."""

    def forward(self, x: Tensor) -> Tensor:
        return x.roll(1, -2)


class Between(nn.Module):
    """A placement of one's own with the mean over all tokens."""

    def forward(self, x: Tensor, f: Callable[[Tensor], Tensor], valid: Tensor | None) -> Tensor:
        return x + f(x).mean(1, keepdim=True)


class Centred(nn.Module):
    """A norm of one's own by the mean over rows, of which it keeps one, while it trains."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.5)
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x: Tensor, valid: Tensor | None) -> Tensor:
        self.mean += x.mean()
        return self.dropout(x - x.mean(0) if self.training else x - self.mean)


class Noisy(nn.Module):
    """A feed-forward layer of one's own that draws numbers."""

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.randn_like(x)


class Pooled(nn.Module):
    """A mixer of one's own that mixes rows."""

    pattern = Full()

    def forward(self, x: Tensor, ctx: Context, cache: Any = None) -> Tensor:
        return x.cumsum(0)

    def new_cache(self) -> Any:
        raise NotImplementedError


class Contrasted(nn.Module):
    """A head of one's own that compares rows."""

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        pooled = x.mean(1)
        return pooled @ pooled.T


@dataclass(frozen=True)
class OwnConfig:
    module: type[nn.Module]

    def build(self, *sizes: Any, **more: Any) -> nn.Module:
        return self.module()

    def build_final(self, *sizes: Any) -> nn.Module:
        return NoNorm()


def decoder(**parts: Any) -> Any:
    sizes: Any = {"d_model": 8, "n_layers": 2, "dropout": 0.3}
    given: Any = {"attention": AttentionConfig(n_heads=2)} | parts
    return DecoderConfig(**sizes, **given).build(tiny.VOCAB)


def test_parts_that_read_other_tokens_are_named() -> None:
    check_tokens_alone(decoder(feedforward=OwnConfig(Doubled)), 8)
    with pytest.raises(InputError) as error:
        check_tokens_alone(decoder(feedforward=OwnConfig(Shifted)), 8)
    assert str(error.value).startswith("feedforward of layer 0 (Shifted) does not compute each")
    with pytest.raises(InputError, match=r"attention_residual of layer 0 \(Between\)"):
        check_tokens_alone(decoder(residual=OwnConfig(Between)), 8)


@pytest.mark.parametrize("kind", [Doubled, Shifted, Noisy])
def test_parts_of_each_row_alone_are_left(kind: type[nn.Module]) -> None:
    check_rows_alone(decoder(feedforward=OwnConfig(kind)), 8)


@pytest.mark.parametrize("name", ["own_score", "own_feedforward", "own_mixer"])
def test_parts_of_ours_with_parts_from_outside_are_left(name: str) -> None:
    field, part = OWN[name]
    cell = Cell(family="decoder", parts=usual(position="alibi"), own=(field, part, name))
    model: Any = Case.of(cell).model
    check_rows_alone(model, model.embed.tokens.weight.shape[1])


def test_parts_that_read_other_rows_are_named_and_are_as_they_were() -> None:
    model = decoder(norm=OwnConfig(Centred)).eval()
    model.stack.blocks[1].train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    state = torch.get_rng_state()
    with pytest.raises(
        InputError,
        match=r"attention_residual.norm of layer 0 \(Centred\) does not compute each row",
    ):
        check_rows_alone(model, 8)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), state)
    with pytest.raises(InputError, match=r"attention of layer 0 \(Pooled\)"):
        check_rows_alone(decoder(attention=OwnConfig(Pooled)), 8)
    encoder = EncoderConfig(d_model=8, n_layers=1, attention=AttentionConfig(n_heads=2))
    model: Any = encoder.build(tiny.VOCAB)
    model.head = Contrasted()
    with pytest.raises(InputError, match=r"head \(Contrasted\)"):
        check_rows_alone(model, 8)


class CentredEmbedding(Embedding):
    """An embedding of one's own, by the mean over rows."""

    def forward(self, tokens: Tensor, ctx: Context, types: Tensor | None = None) -> Tensor:
        x = super().forward(tokens, ctx, types)
        return x - x.mean(0)


def test_an_embedding_that_reads_other_rows_is_named() -> None:
    model = decoder()
    model.embed = CentredEmbedding(model.embed.tokens, position=model.embed.position)
    with pytest.raises(InputError, match=r"embed \(CentredEmbedding\)"):
        check_rows_alone(model, 8)


@pytest.mark.parametrize("norm", [BatchNorm(8), nn.BatchNorm1d(8)])
def test_a_batch_norm_in_a_part_is_named(norm: nn.Module) -> None:
    model = decoder(feedforward=OwnConfig(Doubled))
    check_batch_norms(model, "rows", "one process")
    model.stack.blocks[1].feedforward.norm = norm
    with pytest.raises(InputError) as error:
        check_batch_norms(model, "rows", "one process")
    assert str(error.value).startswith(
        f"feedforward.norm of layer 1 ({type(norm).__name__}) would normalise by the rows of each"
    )
