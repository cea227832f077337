"""What parts of one's own build: another type, call or width is refused by part and layer."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from addnorm.errors import InputError
from addnorm.models import DecoderConfig, EncoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.built import built_module
from addnorm.nn.embed import EmbeddingConfig
from addnorm.nn.heads import TaggingHeadConfig, TransformConfig
from addnorm.nn.masks import Full
from addnorm.nn.moe import MixtureOfExpertsConfig
from addnorm.nn.norms import LayerNorm
from addnorm.nn.positions import Position
from addnorm.training.objective import Objective


@dataclass(frozen=True)
class Builds:
    """A part of any family: what it builds is what it was given."""

    made: Callable[[], Any]

    def build(self, *_: Any) -> Any:
        return self.made()

    def build_final(self, *_: Any) -> Any:
        return nn.Identity()


class Calls(nn.Module):
    """Whatever it is called with, it gives this."""

    pattern = Full()

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.shape = shape
        self.tokens = nn.Embedding(5, 8)
        self.position = Position()

    def forward(self, *inputs: Any) -> Tensor:
        return torch.zeros(self.shape)

    def new_cache(self) -> None: ...


class Wide(Position):
    """Makes embeddings wider."""

    def embed(self, x: Tensor, ctx: Any) -> Tensor:
        return torch.cat([x, x], -1)


class Turned(Position):
    """Makes queries wider."""

    def rotate(self, q: Tensor, k: Tensor, ctx: Any) -> Any:
        return q, torch.cat([k, k], -1)


def _attention(**parts: Any) -> dict[str, Any]:
    return {"attention": AttentionConfig(n_heads=2, n_kv_heads=1, **parts)}


PLACES: dict[str, tuple[Callable[[Any], dict[str, Any]], str, str]] = {
    "norm": (lambda p: {"norm": p}, "layer 0", "norm"),
    "qk_norm": (lambda p: _attention(qk_norm=p), "layer 0", "norm"),
    "norm of embeddings": (lambda p: {"embedding": EmbeddingConfig(norm=p)}, "", "norm"),
    "position": (lambda p: {"position": p}, "", "position"),
    "score": (lambda p: _attention(score=p), "layer 0", "score"),
    "core": (lambda p: _attention(core=p), "layer 0", "core"),
    "output": (lambda p: _attention(output=p), "layer 0", "output"),
    "pattern": (lambda p: _attention(pattern=p), "layer 0", "pattern"),
    "mixer": (lambda p: {"attention": p}, "layer 0", "mixer"),
    "feedforward": (lambda p: {"feedforward": p}, "layer 0", "feedforward"),
    "expert": (
        lambda p: {"feedforward": MixtureOfExpertsConfig(expert=p)},
        "layer 0",
        "feedforward",
    ),
    "placement": (lambda p: {"residual": p}, "layer 0", "placement"),
    "embedding": (lambda p: {"embedding": p}, "", "embedding"),
    "head": (lambda p: {"head": p}, "", "head"),
}


def _build(place: str, part: Any) -> nn.Module:
    changes = {"attention": AttentionConfig(n_heads=2), **PLACES[place][0](part)}
    return DecoderConfig(d_model=8, n_layers=2, **changes).build(5)


@pytest.mark.parametrize("made", [None, "a string"])
@pytest.mark.parametrize("place", PLACES)
def test_a_part_that_builds_no_module_is_refused(place: str, made: Any) -> None:
    _, layer, name = PLACES[place]
    what = "None" if made is None else "str"
    with pytest.raises(InputError, match=rf"^{layer}.*Builds builds {what}: .*{name}.* must be"):
        _build(place, Builds(lambda: made))


@pytest.mark.parametrize("shape", [(2, 3, 9), (2, 3, 1), (2, 8), ()])
@pytest.mark.parametrize("place", [one for one in PLACES if one not in ("pattern", "position")])
def test_a_module_of_another_width_is_refused(place: str, shape: tuple[int, ...]) -> None:
    _, layer, name = PLACES[place]
    made = Builds(lambda: Calls(*shape))
    call = rf"{name}\(.*\) gives \({', '.join(map(str, shape))}\), and must give \(2, "
    with pytest.raises(InputError, match=rf"^{layer}.*Builds: {call}"):
        _build(place, made)


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (Wide, r"embed\(x, ctx\) gives \(2, 3, 16\), and must give \(2, 3, 8\)"),
        (Turned, r"rotate\(q, k, ctx\) gives \(2, 2, 3, 8\), and must give \(2, 2, 3, 4\)"),
    ],
)
def test_positions_that_change_widths_are_refused(made: Any, told: str) -> None:
    with pytest.raises(InputError, match=rf"Builds: {told}"):
        _build("position", Builds(made))


def test_a_module_that_is_called_otherwise_is_refused() -> None:
    message = (
        r"layer 0: .* builds Identity, which does not fit as norm: AddNorm calls norm\(x, valid"
    )
    with pytest.raises(InputError, match=message):
        _build("norm", Builds(nn.Identity))


def test_a_norm_is_rejected_as_feedforward() -> None:
    with pytest.raises(InputError, match=r"layer 0: .*builds LayerNorm, .* would fit as norm"):
        _build("feedforward", Builds(lambda: LayerNorm(8)))


def test_a_loss_that_is_not_a_module_is_rejected() -> None:
    with pytest.raises(InputError, match="Builds builds None: the loss must be"):
        Objective(Builds(lambda: None))


class Noisy(nn.Module):
    """A feed-forward layer that counts, draws numbers, and fails where it is looked at."""

    def __init__(self, *, fails: bool) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.fails = fails

    def forward(self, x: Tensor) -> Tensor:
        if self.fails:
            raise RuntimeError("a fault of its own")
        return self.norm(x) + torch.randn_like(x)


def test_looking_at_a_module_leaves_no_trace() -> None:
    module, x = Noisy(fails=False), torch.zeros(2, 3, 8)
    torch.manual_seed(3)
    assert built_module(Builds(nn.Identity), module, "feedforward(x)", (x,), (2, 3, 8)) is module
    drawn = torch.rand(3)
    torch.manual_seed(3)
    assert torch.equal(drawn, torch.rand(3))
    assert module.training
    assert module.norm.training
    assert int(module.norm.num_batches_tracked or 0) == 0


def test_an_error_inside_a_module_is_raised_when_the_model_runs() -> None:
    model = _build("feedforward", Builds(lambda: Noisy(fails=True)))
    with pytest.raises(RuntimeError, match="a fault of its own"):
        model(torch.tensor([[1, 2]]))


def test_a_head_may_judge_tokens_or_texts() -> None:
    config = EncoderConfig(
        d_model=8,
        n_layers=1,
        attention=AttentionConfig(n_heads=2),
        head=Builds(lambda: Calls(2, 4)),
    )
    config.build(5)  # no labels: any number of features
    tagging = TaggingHeadConfig(transform=TransformConfig(norm=Builds(lambda: None)))
    with pytest.raises(InputError, match="builds None: the norm must be"):
        EncoderConfig(d_model=8, n_layers=1, head=tagging).build(5, n_labels=3)
