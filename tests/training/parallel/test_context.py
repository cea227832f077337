"""Texts split by positions: any number of processes computes as one; what cannot is named."""

import copy
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.training import tiny
from tests.training.parallel.cells import OWN, usual
from tests.training.parallel.conftest import Outcomes
from tests.training.parallel.threads import together
from torch import Tensor, nn

from addnorm.checking.case import Case
from addnorm.checking.long_texts import small_limits
from addnorm.checking.matrix import Cell
from addnorm.data.ids.encoding import IGNORE
from addnorm.errors import InputError
from addnorm.models import DecoderConfig
from addnorm.models.layers import LayerConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.attention.core import EagerCore, EagerCoreConfig, SDPACore
from addnorm.nn.attention.scores import DotProduct
from addnorm.nn.cache import SelfCache
from addnorm.nn.context import Context
from addnorm.nn.masks import Causal, Full, Prefix, Window
from addnorm.nn.no_sublayer import NoFeedForwardConfig, NoMixerConfig
from addnorm.nn.positions import ALiBi, DynamicScaling, RotaryConfig
from addnorm.training.loss import cross_entropy_sum
from addnorm.training.parallel import context
from addnorm.training.parallel.context import Core, SplitTexts, by_chunk, check_texts, split_texts
from addnorm.training.parallel.pieces import Group

pytestmark = pytest.mark.usefixtures("types_unchecked")

HEADS = AttentionConfig(n_heads=2, core=EagerCoreConfig())
DYNAMIC = RotaryConfig(scaling=DynamicScaling(factor=2.0, original_max_len=3))


def decoder(**parts: Any) -> Any:
    torch.manual_seed(0)
    fields: dict[str, Any] = {
        "d_model": 8,
        "n_layers": 2,
        "dropout": 0.0,
        "attention": HEADS,
        **parts,
    }
    return DecoderConfig(**fields).build(tiny.VOCAB).double()


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("n", [1, 2, 3, 7, 8])
def test_texts_of_any_length_have_the_loss_and_gradient_of_one(n: int, size: int) -> None:
    """Shorter than there are processes too; positions by the length of each text the hardest."""
    draw = torch.Generator().manual_seed(0)
    tokens, targets = torch.randint(4, tiny.VOCAB, (2, 3, n), generator=draw)
    valid = torch.arange(n) < torch.tensor([[n], [max(1, n // 2)], [n]])
    segments = torch.tensor([[0] * n, [0] * n, [0] * (n // 2) + [1] * (n - n // 2)])
    targets = targets.where(valid, IGNORE)

    halves = (
        LayerConfig(attention=NoMixerConfig()),
        LayerConfig(feedforward=NoFeedForwardConfig()),
    )
    alone = decoder(position=DYNAMIC, n_layers=3, layer_pattern=(LayerConfig(), *halves))
    loss = cross_entropy_sum(alone(tokens, valid, segments), targets)
    expected = [loss, *torch.autograd.grad(loss, [*alone.parameters()])]

    def compute(group: Group) -> list[Tensor]:
        model = copy.deepcopy(alone)
        split = split_texts(model, group, by_token=True)
        loss = cross_entropy_sum(model(tokens, valid, segments), split.targets(targets))
        gradients = torch.autograd.grad(loss, [*model.parameters()])
        return [group.sum(x) for x in (loss.detach(), *gradients)]

    for results in together(size, compute):
        for ours, theirs in zip(results, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


def test_masks_are_those_of_the_tokens_computed() -> None:
    tokens, valid = torch.zeros(2, 3, dtype=torch.long), torch.tensor([[1, 1, 1], [0, 0, 1]]).bool()

    def compute(group: Group) -> tuple[Tensor, Tensor]:
        model = decoder()
        split = split_texts(model, group, by_token=True)
        model(tokens, valid)
        own = split.stacks["valid"].positions
        return own.own, split.masks({"tokens": tokens, "valid": valid})["valid"]

    for own, mask in together(3, compute):
        assert torch.equal(mask, valid[:, own])
    (*_, (_, mask)) = together(4, compute)
    assert not mask.any()  # nobody counts what stands in for a position


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_part_computes_as_in_one_process(cells_of_two: Outcomes) -> None:
    check(cells_of_two["context"])


@pytest.mark.slow
def test_four_processes_compute_as_one(cells_of_four: Outcomes) -> None:
    check(cells_of_four["context"])


UNSPLIT = (
    "reads other positions, and not by the keys and values",
    "would normalise by the positions",
    "reads the keys or values of layer",
)
"""Why a cell is not split: a recurrence, a norm of the batch, keys of an earlier layer."""


def check(found: Mapping[str, float | str]) -> None:
    """All cells that are split are equal; the others are refused with their reason."""
    refused = [reason for reason in found.values() if isinstance(reason, str)]
    different = {name: by for name, by in found.items() if isinstance(by, float) and by > 1e-12}
    assert len(found) - len(refused) > 180
    assert not different
    assert all("parallel.data in place of context" in reason for reason in refused)
    assert not [text for text in refused if not any(reason in text for reason in UNSPLIT)]


class Deaf(nn.Module):
    """A mixer of one's own that takes no notice of its cache."""

    pattern = Full()

    def forward(self, x: Tensor, ctx: Context, cache: Any = None) -> Tensor:
        return x.cumsum(1)

    def new_cache(self) -> SelfCache:
        return SelfCache()


@dataclass(frozen=True)
class DeafConfig:
    def build(self, *sizes: Any) -> nn.Module:
        return Deaf()


def test_a_mixer_that_does_not_read_the_keys_of_others_is_named() -> None:
    def compute(group: Group) -> None:
        model = decoder(attention=DeafConfig())
        split_texts(model, group, by_token=True)
        with pytest.raises(InputError, match=r"Deaf does not read its cache"):
            model(torch.zeros(1, 4, dtype=torch.long))

    together(2, compute)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"own": (*OWN["own_mixer"], "own_mixer")}, "attention of layer 0 (OwnMixer) reads other"),
        ({"variant": "attention_beside_recurrence"}, "(Recurrent) reads other positions"),
        (
            {"family": "encoder", "variant": "first_convolution"},
            "convolution of layer 0 (LayerConvolution) reads other positions",
        ),
    ],
)
def test_what_cannot_be_split_is_named(changes: dict[str, Any], message: str) -> None:
    model = Case.of(Cell(**{"family": "decoder", "parts": usual(), **changes})).model
    with pytest.raises(InputError) as error:
        check_texts(model)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_large_attention_is_known_from_whole_texts() -> None:
    """So that all processes know it of the same batches."""

    def compute(group: Group) -> tuple[SplitTexts, Any]:
        model = decoder()
        split = split_texts(model, group, by_token=True)
        model(torch.zeros(1, 7, dtype=torch.long))
        return split, model

    for split, model in together(2, compute):
        core = model.stack.blocks[0].attention.core
        q, k = torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 7, 4)
        assert not split.in_tiles(core, q, k, rows=1)
        assert split.in_tiles(core, q, k, rows=2**20)


PATTERNS = (Full(), Window(2))
EAGER = EagerCore(DotProduct(0.5))
CORES = (SDPACore(), EAGER)


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 12), st.randoms(), st.sampled_from(CORES), st.booleans(), st.booleans())
def test_chunks_compute_the_same(
    n: int, random: Random, core: torch.nn.Module, tiled: bool, biased: bool
) -> None:
    """With padding, segments of a prefix, and queries that may attend to nothing."""
    valid = torch.tensor([[random.random() < 0.7 for _ in range(n)] for _ in range(2)])
    mask = random.choice([Causal(), Prefix(torch.tensor([1, 0]))])
    places = random.sample(range(n), n)
    own = random.randint(1, n - 1)
    slots, others = torch.tensor(places[:own]), torch.tensor(places[own:])
    ctx = Context.over(torch.zeros(2, n), mask, valid=valid).part(slots, others)
    with small_limits() if tiled else nullcontext():
        ctx = ctx.restrict(random.choice(PATTERNS))
    draw = torch.Generator().manual_seed(0)
    shapes = (2, 2, own, 4), (2, 2, n, 4), (2, 2, n, 4)
    q, k, v = (torch.randn(s, generator=draw, dtype=torch.float64) for s in shapes)
    bias = ALiBi(2).score_bias(q, ctx) if biased else None
    first = random.randint(0, own)
    rows = [part for part in (slice(0, first), slice(first, own)) if part.start < part.stop]

    def computed(attend: Core) -> list[Tensor]:
        inputs = [x.clone().requires_grad_() for x in (q, k, v)]
        y = attend(*inputs, ctx.mask, bias)
        return [y, *torch.autograd.grad(y.sin().sum(), inputs)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(context, "FEWEST", 0)
        ours = computed(by_chunk(core, lambda: rows))
    for a, b in zip(ours, computed(core), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_keys_out_of_reach_are_left_out() -> None:
    """A chunk at the head of a text and one at its tail, as the first of two processes has them."""
    n = 8
    slots, others = torch.tensor([0, 1, 6, 7]), torch.tensor([2, 3, 4, 5])
    ctx = Context.over(torch.zeros(1, n), Causal()).part(slots, others).restrict(Full())
    pairs = list[int]()

    def core(q: Tensor, k: Tensor, v: Tensor, mask: object, bias: object) -> Tensor:
        pairs.append(q.shape[2] * k.shape[2])
        return q

    q, k = torch.zeros(1, 1, 4, 2), torch.zeros(1, 1, n, 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(context, "FEWEST", 0)
        attend = by_chunk(core, lambda: [slice(0, 2), slice(2, 4)])
        assert attend(q, k, k, ctx.mask, None).shape == q.shape
    assert pairs == [2 * 2, 2 * 8]
