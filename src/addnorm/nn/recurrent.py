"""Recurrent mixers (RNN, LSTM, GRU), and the grouping of tokens into runs, one for each text."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence

from addnorm.config import config
from addnorm.nn.context import Context
from addnorm.nn.linear import Linear, multiplies_bfloat16
from addnorm.nn.masks import Full, Mask
from addnorm.nn.positions.position import Position
from addnorm.nn.types import Hidden

FlatTokens = Float[Tensor, "tokens width"]
State = Float[Tensor, "batch slots d_state"]

Cell = Literal["rnn", "lstm", "gru"]
CELLS: dict[Cell, Callable[..., nn.RNNBase]] = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}

_SPARSE = 2
"""Maximum slots per token for which a padded grid is faster than a packed sequence (CPU)."""


class StateCache:
    """The recurrent state of a mixer after the tokens so far: a few vectors per batch row."""

    def __init__(self, slots: int, width: int) -> None:
        self.slots = slots
        self.width = width
        self._state: Tensor | None = None

    def state(self, x: Hidden) -> State:
        """The state before the new tokens `x`: zero for the first tokens."""
        if self._state is None:
            return x.new_zeros(len(x), self.slots, self.width)
        return self._state

    def keep(self, state: State) -> None:
        """Store this state for the next tokens."""
        self._state = state

    def select(self, rows: Int[Tensor, " rows"]) -> None:
        """Keep these batch rows, in this order; rows may repeat."""
        self._state = None if self._state is None else self._state.index_select(0, rows)

    def join(self, other: "StateCache") -> None:
        """Add the rows of another state after these; both have read a token."""
        if self._state is not None and other._state is not None:
            self._state = torch.cat([self._state, other._state])


class StateCaches:
    """The states of the stages of one mixer: of its convolution, then of its recurrence."""

    def __init__(self, *stages: StateCache) -> None:
        self.stages = stages

    def select(self, rows: Int[Tensor, " rows"]) -> None:
        """Keep these batch rows, in this order; rows may repeat."""
        for stage in self.stages:
            stage.select(rows)

    def join(self, other: "StateCaches") -> None:
        """Add the rows of the states of the same mixer after these."""
        for stage, more in zip(self.stages, other.stages, strict=True):
            stage.join(more)


@dataclass(frozen=True, kw_only=True)
class Compacted:
    """The real tokens of every row moved to the front, in their order, and padding to the end.

    All shapes are those of the batch, so that no step waits for a value on the device. On a CPU,
    where reading a value costs nothing, rows without padding are left as they are.
    """

    order: Int[Tensor, "batch seq"] | None
    """The slot of each place; None without padding."""
    length: Int[Tensor, " batch"]
    """The number of real tokens of each row."""
    positions: Int[Tensor, "batch seq"]

    @classmethod
    def of(cls, ctx: Context) -> "Compacted":
        """Compact the real tokens of a forward pass."""
        positions = ctx.positions.expand(ctx.batch, -1)
        valid = ctx.valid
        if valid is None or (valid.device.type == "cpu" and bool(valid.all())):
            length = torch.full_like(positions[:, 0], positions.shape[1])
            return cls(order=None, length=length, positions=positions)
        order = (~valid).long().argsort(dim=1, stable=True)
        return cls(order=order, length=valid.sum(1), positions=positions.gather(1, order))

    @property
    def places(self) -> Int[Tensor, " seq"]:
        """The places of a row, from 0."""
        return torch.arange(self.positions.shape[1], device=self.positions.device)

    @property
    def real(self) -> Bool[Tensor, "batch seq"]:
        """Whether each place holds a token."""
        return self.places < self.length[:, None]

    @property
    def begins(self) -> Bool[Tensor, "batch seq"]:
        """Whether each place holds the first token of a text."""
        return self.real & (self.positions == 0)

    def texts(self, left: int, right: int = 0) -> Int[Tensor, "batch line"]:
        """The number of each token's text in its row; text 0 continues an earlier pass.

        With so many places for tokens before the row, and for zeros after it.
        """
        number = self.begins.cumsum(1)
        earlier, last = number.new_zeros(len(number), left), number[:, -1:]
        return torch.cat([earlier, number, last.expand(-1, right)], dim=1)

    def last(
        self,
        line: Float[Tensor, "batch line width"],
        text: Int[Tensor, "batch line"] | None,
        n: int,
    ) -> Float[Tensor, "batch n width"]:
        """The last `n` tokens of each row's last text, with zero before its first.

        `line` has `n` places before the row, and `text` numbers its texts.
        """
        places = self.length[:, None] + torch.arange(n, device=line.device)
        tokens = line.gather(1, places[..., None].expand(-1, -1, line.shape[2]))
        if text is None:
            return tokens
        return tokens.masked_fill((text.gather(1, places) != text[:, -1:])[..., None], 0.0)

    def gather(self, x: Hidden) -> Hidden:
        """The tokens in this order, with zero at padding."""
        if self.order is None:
            return x
        return _in_order(x, self.order).masked_fill(~self.real[..., None], 0.0)

    def scatter(self, tokens: Hidden) -> Hidden:
        """The tokens back in their slots, with zero at padding."""
        if self.order is None:
            return tokens
        tokens = tokens.masked_fill(~self.real[..., None], 0.0)
        return _in_order(tokens, self.order.argsort(dim=1))

    def turn(self, tokens: Hidden) -> Hidden:
        """Reverse the real tokens of every row."""
        if self.order is None:
            return tokens.flip(1)
        from_the_end = self.length[:, None] - 1 - self.places
        return _in_order(tokens, torch.where(self.real, from_the_end, self.places))

    def before(self, state: State) -> State:
        """The initial state of each row: zero at the start of a text."""
        return state.masked_fill(self.begins[:, :1, None], 0.0)

    def after(self, state: State, ends: State) -> State:
        """The state of each row after its last token; unchanged for a row of padding only."""
        if self.order is None:
            return ends
        return torch.where((self.length > 0)[:, None, None], ends.to(state.dtype), state)


def _in_order(x: Hidden, order: Int[Tensor, "batch seq"]) -> Hidden:
    """The tokens of each row in this order."""
    if x.shape[1] == 1:
        return x
    first = torch.arange(len(x), device=x.device)[:, None] * x.shape[1]
    return x.flatten(0, 1).index_select(0, (first + order).flatten()).unflatten(0, order.shape)


@dataclass(frozen=True, kw_only=True)
class Runs:
    """The real tokens of a forward pass, numbered row by row, in runs of one text each.

    A run begins at the start of a text (position 0) and at the start of a batch row that continues
    an earlier text. Padding belongs to no run and does not interrupt one.
    """

    shape: tuple[int, int]
    slot: Int[Tensor, " tokens"]
    """The index of each token in the flattened batch."""
    run: Int[Tensor, " tokens"]
    start: Int[Tensor, " runs"]
    length: Int[Tensor, " runs"]
    row: Int[Tensor, " runs"]
    """The batch row of each run."""
    fresh: Bool[Tensor, " runs"]
    """Whether the run begins a text, rather than continuing one."""

    @classmethod
    def of(cls, ctx: Context) -> "Runs":
        """The runs of a forward pass."""
        shape = (ctx.batch, ctx.positions.shape[1])
        positions = ctx.positions.expand(shape).flatten()
        slot = torch.arange(len(positions), device=positions.device)
        slot = slot if ctx.valid is None else slot[ctx.valid.flatten()]
        row, fresh = slot // shape[1], positions[slot] == 0
        begins = fresh.clone()
        begins[:1] = True
        begins[1:] |= row[1:] != row[:-1]
        start = begins.nonzero().squeeze(1)
        return cls(
            shape=shape,
            slot=slot,
            run=begins.cumsum(0) - 1,
            start=start,
            length=start.diff(append=start.new_tensor([len(slot)])),
            row=row[start],
            fresh=fresh[start],
        )

    def __len__(self) -> int:
        return len(self.start)

    @property
    def place(self) -> Int[Tensor, " tokens"]:
        """The index of each token in its run, from 0."""
        return torch.arange(len(self.slot), device=self.slot.device) - self.start[self.run]

    def gather(self, x: Hidden) -> FlatTokens:
        """Gather the real tokens from the batch."""
        return x.flatten(0, 1).index_select(0, self.slot)

    def scatter(self, tokens: FlatTokens) -> Hidden:
        """Scatter the tokens back into the batch, with zero at padding."""
        batch, seq = self.shape
        return put(tokens, self.slot, batch * seq).unflatten(0, self.shape)

    def turn(self, tokens: FlatTokens) -> FlatTokens:
        """Reverse the tokens of every run."""
        return tokens.index_select(0, (self.start + self.length - 1)[self.run] - self.place)

    def before(self, state: State) -> Float[Tensor, "runs slots d_state"]:
        """The initial state of each run: its row's state, or zero at the start of a text."""
        return state.index_select(0, self.row).masked_fill(self.fresh[:, None, None], 0.0)

    def after(self, state: State, ends: Float[Tensor, "runs slots d_state"]) -> State:
        """The state of each row after its last run; unchanged for a row of padding only."""
        rows = torch.arange(len(state), device=state.device)
        last = torch.searchsorted(self.row, rows, right=True) - 1
        read = (self.row[last] == rows)[:, None, None]
        return torch.where(read, ends[last].to(state.dtype), state)


def put(
    tokens: FlatTokens, places: Int[Tensor, " tokens"], size: int
) -> Float[Tensor, "size width"]:
    """A tensor of `size` rows with these tokens at the given indices and zero elsewhere."""
    return tokens.new_zeros(size, tokens.shape[1]).index_copy(0, places, tokens)


@runtime_checkable
class StoredOtherwise(Protocol):
    """A recurrent layer whose weights are stored in another form, such as quantised."""

    def plain(self) -> nn.RNNBase:
        """The layer with plain weights."""
        ...


class Recurrent(nn.Module):
    """`h W_o`, with `h` read from left to right and, unless `causal`, from right to left too.

    rnn: `h_t = tanh(W x_t + U h_{t-1} + b)`
        (Elman 1990, with tanh for his logistic function);
    lstm: `i, f, o = σ(W x_t + U h_{t-1} + b)`, `g = tanh(W x_t + U h_{t-1} + b)`,
        `c_t = f ⊙ c_{t-1} + i ⊙ g`, `h_t = o ⊙ tanh(c_t)`
        (Hochreiter & Schmidhuber 1997; the forget gate `f` is Gers et al. 2000);
    gru: `r, z = σ(W x_t + U h_{t-1} + b)`, `n = tanh(W x_t + r ⊙ (U h_{t-1} + b))`,
        `h_t = z ⊙ h_{t-1} + (1 - z) ⊙ n`
        (Cho et al. 2014, §2.3, with `r ⊙ (U h)` for `U (r ⊙ h)`, as fused kernels have it).

    `W`, `U` and `b` differ from gate to gate. Two directions share `d_hidden` in equal halves
    (Schuster & Paliwal 1997). Every text begins at zero, whatever else is in its row; the output at
    padding is zero. Raises `ValueError` where `d_hidden` does not split in two, and for a cache of
    a bidirectional mixer, whose later tokens change the states of earlier ones.
    """

    pattern: Mask = Full()
    output_weights = ("out_proj",)
    deepnorm_weights = ("out_proj",)

    def __init__(
        self, d_model: int, d_hidden: int, *, cell: Cell, causal: bool, bias: bool = True
    ) -> None:
        super().__init__()
        if not causal and d_hidden % 2:
            raise ValueError(
                f"d_hidden = {d_hidden} does not split into 2 directions: "
                f"it must be even, such as {d_hidden + 1}"
            )
        self.slots = 2 if cell == "lstm" else 1
        self.width = width = d_hidden if causal else d_hidden // 2
        self.ahead = CELLS[cell](d_model, width, bias=bias, batch_first=True)
        self.back = None if causal else CELLS[cell](d_model, width, bias=bias, batch_first=True)
        self.out_proj = Linear(d_hidden, d_model, bias=bias)

    def forward(self, x: Hidden, ctx: Context, cache: StateCache | None = None) -> Hidden:
        if cache is not None and self.back is not None:
            raise ValueError("a mixer that reads in both directions has no use for a cache")
        if not x.numel():
            return x
        past = None if cache is None else cache.state(x)
        read = self._read_texts if ctx.several else self._read_rows
        y, state = read(x, ctx, past)
        if cache is not None and state is not None:
            cache.keep(state)
        return y

    def _read_rows(
        self, x: Hidden, ctx: Context, past: State | None
    ) -> tuple[Hidden, State | None]:
        """The outputs and final state of rows with one text each; does not wait for the device."""
        rows = Compacted.of(ctx)
        tokens, begin = rows.gather(x), None if past is None else rows.before(past)
        hidden, end = self._hidden(tokens, lambda k, y: _read(k, y, begin), rows.turn)
        y = rows.scatter(self.out_proj(hidden))
        if past is None or begin is None:
            return y, None
        if rows.order is not None and x.shape[1] > 1:
            end = _end(self.ahead, tokens, hidden, begin, rows)
        return y, rows.after(past, end)

    def _read_texts(
        self, x: Hidden, ctx: Context, past: State | None
    ) -> tuple[Hidden, State | None]:
        """The outputs and final state of rows with several texts; waits for the device."""
        runs = Runs.of(ctx)
        if not len(runs):
            return torch.zeros_like(x), None
        tokens = runs.gather(x)
        hidden, state = self._hidden(tokens, lambda k, y: _scan(k, y, runs, past), runs.turn)
        y = runs.scatter(self.out_proj(hidden))
        return y, None if past is None else runs.after(past, state)

    def _hidden(
        self,
        tokens: Tensor,
        read: Callable[[nn.Module, Tensor], tuple[Tensor, Tensor]],
        turn: Callable[[Tensor], Tensor],
    ) -> tuple[Tensor, Tensor]:
        """The hidden states of the tokens, both directions concatenated, and the final state."""
        hidden, state = read(self.ahead, tokens)
        if self.back is not None:
            hidden = torch.cat([hidden, turn(read(self.back, turn(tokens))[0])], dim=-1)
        return hidden, state

    def new_cache(self) -> StateCache:
        """An empty cache for `h` and, in an LSTM, `c`."""
        return StateCache(self.slots, self.width)


@config
class RecurrentConfig:
    """`d_hidden` is the width of the hidden state, both directions together; d_model by default.

    Positions are left to the recurrence. The kernels start as torch does, uniform in
    `±1/√d_hidden`.
    """

    kind: Literal["recurrent"] = "recurrent"
    cell: Cell = "lstm"
    """The recurrent cell: a plain RNN, an LSTM or a GRU."""
    d_hidden: PositiveInt | None = None
    """The width of the hidden state, both directions together; by default d_model."""
    bias: bool = True
    """Whether the cell and its projections have biases."""

    @classmethod
    def examples(cls) -> dict[str, Any]:
        """One example for each cell."""
        return {
            "lstm": cls(),
            "gru": cls(cell="gru", d_hidden=6),
            "rnn": cls(cell="rnn"),
            "rnn_without_bias": cls(cell="rnn", bias=False),
        }

    def build(self, d_model: int, position: Position, causal: bool, layer: int = 0) -> Recurrent:
        return Recurrent(
            d_model, self.d_hidden or d_model, cell=self.cell, causal=causal, bias=self.bias
        )


def _read(
    kernel: nn.Module, tokens: Tensor | PackedSequence, state: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Run torch's kernel from `state`, or from zero, in a dtype that the processor supports."""
    if torch.is_autocast_enabled("cpu") and not multiplies_bfloat16:
        # oneDNN has no LSTM in bfloat16 there, and torch asks for it all the same.
        with torch.autocast("cpu", enabled=False):
            return _run(kernel, tokens.float(), None if state is None else state.float())
    return _run(kernel, tokens, state)


def _run(
    kernel: nn.Module, tokens: Tensor | PackedSequence, state: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Run torch's kernel; an LSTM's `h` and `c` take two slots of the state."""
    if state is None:
        hidden, end = kernel(tokens)
    else:
        slots = state.transpose(0, 1).contiguous()
        hidden, end = kernel(tokens, slots if len(slots) == 1 else slots.split(1))
    hidden = hidden.data if isinstance(hidden, PackedSequence) else hidden
    return hidden, torch.cat(end if isinstance(end, tuple) else [end]).transpose(0, 1)


def _end(
    kernel: nn.Module,
    tokens: Hidden,
    hidden: Float[Tensor, "batch seq d_state"],
    begin: State,
    rows: Compacted,
) -> State:
    """The state after the last real token of each row, for rows that end with padding.

    `h` is among the hidden states. With all of them known, so are the gates, and an LSTM's
    `c_n = Σ_t i_t g_t Π_{t<s≤n} f_s` with `c_0` for `i_0 g_0`.
    """
    last = (rows.length - 1).clamp(min=0)[:, None]
    h = hidden.gather(1, last[..., None].expand(-1, -1, hidden.shape[2]))
    if begin.shape[1] == 1:
        return h
    earlier = torch.cat([begin[:, :1].to(hidden.dtype), hidden[:, :-1]], dim=1)
    plain = kernel.plain() if isinstance(kernel, StoredOtherwise) else kernel
    named = dict(plain.named_parameters())
    driven = F.linear(tokens, named["weight_ih_l0"], named.get("bias_ih_l0"))
    gates = driven + F.linear(earlier, named["weight_hh_l0"], named.get("bias_hh_l0"))
    i, f, g, _ = gates.to(begin.dtype).chunk(4, dim=-1)
    real = rows.real[..., None]
    log_f = torch.where(real, F.logsigmoid(f), 0.0)
    to_the_end = log_f.flip(1).cumsum(1).flip(1)
    c = (torch.where(real, i.sigmoid() * g.tanh(), 0.0) * (to_the_end - log_f).exp()).sum(1)
    c = c + begin[:, 1] * to_the_end[:, 0].exp()
    return torch.stack([h[:, 0].to(c.dtype), c], dim=1)


def _scan(
    kernel: nn.Module, tokens: FlatTokens, runs: Runs, past: State | None
) -> tuple[Float[Tensor, "tokens d_hidden"], Tensor]:
    """Process each run separately, as a padded grid (faster on a CPU) or a packed sequence."""
    longest = int(runs.length.max())
    if past is None and len(runs) * longest <= _SPARSE * len(tokens):
        cell = runs.run * longest + runs.place
        grid = put(tokens, cell, len(runs) * longest).unflatten(0, (len(runs), longest))
        hidden, ends = _read(kernel, grid, None)
        return hidden.flatten(0, 1).index_select(0, cell), ends
    by_length = runs.length.argsort(descending=True)
    rank = by_length.argsort()
    order = (runs.place * len(runs) + rank[runs.run]).argsort()
    steps = PackedSequence(tokens[order], runs.place.bincount().cpu(), by_length, rank)
    hidden, ends = _read(kernel, steps, None if past is None else runs.before(past))
    return put(hidden, order, len(tokens)), ends
