"""Recurrent mixers: the papers' steps in float64, torch's cells, and independent texts."""

import pytest
import torch
from hypothesis import given
from tests.contracts import context, started
from tests.nn.slots import BEGIN, FEW, PADDING, SLOTS, TOKEN, passing
from torch import Tensor, nn
from torch.testing import assert_close

from addnorm.nn.positions import NoPosition
from addnorm.nn.recurrent import CELLS, Cell, Recurrent, RecurrentConfig, Runs

RECORDS = [
    RecurrentConfig(cell="rnn"),
    RecurrentConfig(cell="lstm"),
    RecurrentConfig(cell="gru"),
    RecurrentConfig(cell="gru", d_hidden=6, bias=False),
]
NAMES = ["rnn", "lstm", "gru", "wide"]
DIRECTIONS = pytest.mark.parametrize("causal", [True, False], ids=["causal", "both"])
EACH = pytest.mark.parametrize("config", RECORDS, ids=NAMES)


def build(config: RecurrentConfig, d_model: int = 4, *, causal: bool) -> Recurrent:
    return started(config.build(d_model, NoPosition(), causal)).double()


def texts(slots: Tensor) -> list[tuple[int, list[int]]]:
    """The row and the slots of every text."""
    found = dict[tuple[int, int], list[int]]()
    for row, segments in enumerate((slots == BEGIN).cumsum(1).tolist()):
        for slot, segment in enumerate(segments):
            if slots[row, slot] != PADDING:
                found.setdefault((row, segment), []).append(slot)
    return [(row, text) for (row, _), text in found.items()]


def paper(cell: Cell, kernel: nn.RNNBase, x: Tensor) -> Tensor:
    """The steps of one text, gate by gate."""
    n = kernel.hidden_size
    zero = torch.zeros(kernel.weight_ih_l0.shape[0], dtype=torch.float64)
    b, c = (kernel.bias_ih_l0, kernel.bias_hh_l0) if kernel.bias else (zero, zero)
    h, memory, states = zero[:n], zero[:n], []
    for x_t in x:
        drive = [w @ x_t + a for w, a in zip(kernel.weight_ih_l0.split(n), b.split(n), strict=True)]
        echo = [u @ h + a for u, a in zip(kernel.weight_hh_l0.split(n), c.split(n), strict=True)]
        match cell:
            case "rnn":
                h = torch.tanh(drive[0] + echo[0])
            case "lstm":
                i, f, g, o = (a + e for a, e in zip(drive, echo, strict=True))
                memory = f.sigmoid() * memory + i.sigmoid() * g.tanh()
                h = o.sigmoid() * memory.tanh()
            case "gru":
                r, z = ((a + e).sigmoid() for a, e in zip(drive[:2], echo[:2], strict=True))
                h = z * h + (1 - z) * torch.tanh(drive[2] + r * echo[2])
        states.append(h)
    return torch.stack(states)


def test_sizes() -> None:
    causal, both = (RecurrentConfig().build(8, NoPosition(), c) for c in (True, False))
    assert causal.ahead.hidden_size == 8
    assert both.ahead.hidden_size == both.back.hidden_size == 4
    for mixer in (causal, both, RecurrentConfig(d_hidden=6).build(8, NoPosition(), False)):
        assert mixer(torch.randn(2, 3, 8), context(2, 3)).shape == (2, 3, 8)


@EACH
@DIRECTIONS
@FEW
@given(slots=SLOTS)
def test_every_text_is_read_as_if_alone(
    config: RecurrentConfig, causal: bool, slots: list[list[int]]
) -> None:
    """Padding anywhere, batch-mates and packed neighbours change nothing."""
    mixer, held = build(config, causal=causal), torch.tensor(slots)
    x = torch.randn(*held.shape, 4).double()
    expected = torch.zeros_like(x)
    for row, text in texts(held):
        hidden = paper(config.cell, mixer.ahead, x[row, text])
        if mixer.back is not None:
            behind = paper(config.cell, mixer.back, x[row, text].flip(0)).flip(0)
            hidden = torch.cat([hidden, behind], -1)
        expected[row, text] = mixer.out_proj(hidden)
    assert_close(mixer(x, passing(held)), expected, rtol=0, atol=1e-12)


@EACH
@DIRECTIONS
def test_one_long_text_among_short_ones(config: RecurrentConfig, causal: bool) -> None:
    """Packed so unevenly that a padded grid would be mostly empty."""
    slots = torch.full((2, 16), BEGIN)
    slots[0, 1:] = TOKEN
    mixer, x = build(config, causal=causal), torch.randn(2, 16, 4).double()
    y = mixer(x, passing(slots))
    assert_close(y[:1], mixer(x[:1], context(1, 16)), rtol=0, atol=1e-12)
    alone = mixer(x[1, :, None], context(16, 1))
    assert_close(y[1], alone[:, 0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("cell", CELLS)
def test_torch_steps_alike(cell: Cell) -> None:
    mixer, x = build(RecurrentConfig(cell=cell), causal=True), torch.randn(3, 6, 4).double()
    single = {"rnn": nn.RNNCell, "lstm": nn.LSTMCell, "gru": nn.GRUCell}[cell](4, 4).double()
    single.load_state_dict(
        {name.removesuffix("_l0"): value for name, value in mixer.ahead.state_dict().items()}
    )
    y, state = mixer(x, context(3, 6)), None
    for t in range(6):
        state = single(x[:, t], state)
        h = state[0] if isinstance(state, tuple) else state
        assert_close(y[:, t], mixer.out_proj(h), rtol=0, atol=1e-12)


@pytest.mark.parametrize("cell", CELLS)
def test_torch_reads_both_ways_alike(cell: Cell) -> None:
    mixer, x = build(RecurrentConfig(cell=cell), causal=False), torch.randn(3, 6, 4).double()
    kernel = CELLS[cell](4, 2, batch_first=True, bidirectional=True).double()
    weights = mixer.ahead.state_dict()
    weights |= {f"{name}_reverse": value for name, value in mixer.back.state_dict().items()}
    kernel.load_state_dict(weights, strict=True)
    expected = mixer.out_proj(kernel(x)[0])
    assert_close(mixer(x, context(3, 6)), expected, rtol=0, atol=1e-12)


@EACH
def test_a_sum_of_both_directions_sees_everything(config: RecurrentConfig) -> None:
    mixer, x = build(config, causal=False), torch.randn(1, 6, 4).double().requires_grad_()
    mixer(x, context(1, 6))[0, 2].sum().backward()
    assert (x.grad[0].abs().sum(-1) > 0).all()


def test_a_cache_needs_one_direction() -> None:
    mixer = RecurrentConfig().build(4, NoPosition(), False)
    with pytest.raises(ValueError, match="both directions"):
        mixer(torch.randn(1, 2, 4), context(1, 2), mixer.new_cache())


def test_impossible_values_are_refused() -> None:
    with pytest.raises(ValueError, match=r"d_hidden = 5 .* 2 directions: .* such as 6"):
        RecurrentConfig(d_hidden=5).build(8, NoPosition(), False)
    assert RecurrentConfig(d_hidden=5).build(8, NoPosition(), True).ahead.hidden_size == 5
    for field, value in (("d_hidden", 0), ("cell", "elman"), ("bias", "maybe")):
        with pytest.raises(ValueError, match=field):
            RecurrentConfig(**{field: value})


def test_runs() -> None:
    ctx = passing(torch.tensor([[0, 1, 1, 2], [1, 0, 1, 1], [0, 0, 0, 0]]))
    runs = Runs.of(ctx)
    assert len(runs) == 3
    assert runs.slot.tolist() == [1, 2, 3, 4, 6, 7]
    assert runs.run.tolist() == [0, 0, 1, 2, 2, 2]
    assert runs.place.tolist() == [0, 1, 0, 0, 1, 2]
    assert runs.row.tolist() == [0, 0, 1]
    assert runs.length.tolist() == [2, 1, 3]
    assert runs.fresh.tolist() == [True, True, True]
    tokens = torch.randn(6, 2)
    assert torch.equal(runs.turn(tokens), tokens[[1, 0, 2, 5, 4, 3]])
    assert torch.equal(runs.gather(runs.scatter(tokens)), tokens)
    state, ends = torch.randn(3, 1, 2), torch.randn(3, 1, 2)
    assert torch.equal(runs.after(state, ends), torch.stack([ends[1], ends[2], state[2]]))


def test_a_continued_row_begins_in_its_state() -> None:
    ctx = passing(torch.tensor([[1, 1, 1, 2], [1, 1, 2, 1]]), 2)
    runs, state = Runs.of(ctx), torch.randn(2, 1, 3)
    assert runs.fresh.tolist() == [False, True, True]
    zero = torch.zeros(1, 3)
    assert torch.equal(runs.before(state), torch.stack([state[0], zero, zero]))
