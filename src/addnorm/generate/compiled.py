"""One text at a time, through a compiled graph for every token: the fastest way to write on a CPU.

Writing one text is bound by how fast the weights are read from memory, so everything between two
products is one graph with them, and the products of a single row are loops over the weights
(`graphs.one_row`).
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from addnorm.errors import InputError
from addnorm.generate.graphs import compiled
from addnorm.generate.next_token import Ids, Logits, checked, evaluating, positions_for
from addnorm.models import DecoderModel
from addnorm.nn.attention import SelfAttention
from addnorm.nn.cache import FixedCache, Held, KVCache, SelfCache
from addnorm.nn.moe import MixtureOfExperts

Buffer = Float[Tensor, "1 kv_heads room d_head"]
Buffers = list[Buffer]

ROOM = 256
"""For how many tokens the buffers have room at least; beyond, for the next power of two."""


class CompiledContinuation:
    """A decoder-only model goes on from one prompt; the graph is compiled once for its kind.

    The first time takes up to a minute; afterwards the graph comes from disk. Weights that are
    views across a file, as GPT-2's, are copied. Raises `InputError` for a model that has other
    mixers than attention, or a mixture of experts, or is not on a CPU, and where there is no C++
    compiler.
    """

    def __init__(self, model: DecoderModel) -> None:
        if not all(isinstance(mixer, SelfAttention) for mixer in model.stack.mixers):
            raise InputError("only attention compiles for writing, and this model has other mixers")
        if any(isinstance(module, MixtureOfExperts) for module in model.modules()):
            raise InputError("a mixture of experts does not compile for writing: it splits tokens")
        if (device := next(model.parameters()).device).type != "cpu":
            raise InputError(f"compiled writing is for a CPU, and this model is on {device}")
        for weight in model.parameters():  # a graph reads them row by row, from end to end
            weight.data = weight.data.contiguous()
        self.model = model
        step, n = _Step(model).eval(), 3
        _, *buffers = self._read([0] * n)
        auto = torch.export.Dim.DYNAMIC
        room = [{2: auto} for _ in buffers[0]]
        example = torch.zeros(1, 1, dtype=torch.long), torch.arange(n), *buffers
        with evaluating(model), torch.no_grad():
            self._graph = compiled(step, example, (None, {0: auto}, room, room))

    def room(self, i: int, prompt: Ids) -> int:
        """All positions but the prompt's; the last token written is never read."""
        return positions_for(self.model.embed, i, prompt) - len(prompt) + 1

    def start(self, prompts: Sequence[Ids]) -> Logits:
        """Read the prompt as `Continuation` does. Raises `InputError` for more than one."""
        if len(prompts) != 1:
            raise InputError(f"a compiled model writes one text at a time, not {len(prompts)}")
        self._n = len(prompts[0])
        logits, self._keys, self._values = self._read(prompts[0])
        return checked(logits)

    @torch.inference_mode()
    def step(self, tokens: Int[Tensor, " rows"]) -> Logits:
        """Append one token."""
        self._n += 1
        if (room := _room(self._n)) > self._keys[0].shape[2]:
            self._keys, self._values = _longer(self._keys, room), _longer(self._values, room)
        slots = torch.arange(self._n)
        return checked(self._graph(tokens[:, None], slots, self._keys, self._values))

    def select(self, rows: Int[Tensor, " kept"]) -> None:
        """There is one row, and it stays. Raises `InputError` where a search wants several."""
        if len(rows) != 1:
            raise InputError("a compiled model writes one text at a time: beams need it uncompiled")

    @torch.no_grad()
    def _read(self, prompt: Ids) -> tuple[Logits, Buffers, Buffers]:
        """The logits after a prompt, and the keys and values of all layers, with room for more."""
        cache, n = self.model.new_cache(), len(prompt)
        with evaluating(self.model):
            logits = self.model.next(torch.tensor([prompt]), cache=cache)
        kept = [layer.own.kept for layer in cache if isinstance(layer.own, SelfCache)]
        keys, values = ([_buffer(part, n) for part in parts] for parts in zip(*kept, strict=True))
        return logits, keys, values


def _room(n: int) -> int:
    """Slots for `n` tokens: a power of two, with one to spare, for a graph sees a part of them."""
    return max(ROOM, 1 << n.bit_length())


def _buffer(kept: Held, n: int) -> Buffer:
    """The last of `n` keys or values at their places in a buffer with room for more."""
    buffer = kept.new_zeros(*kept.shape[:2], _room(n), kept.shape[3])
    buffer[:, :, n - kept.shape[2] : n] = kept
    return buffer


def _longer(buffers: Buffers, room: int) -> list[Float[Tensor, "1 kv_heads longer d_head"]]:
    """The buffers with `room` slots, the new ones at the end."""
    return [F.pad(buffer, (0, 0, 0, room - buffer.shape[2])) for buffer in buffers]


class _Step(nn.Module):
    """The logits after one more token of a text, whose keys and values go into the buffers."""

    def __init__(self, model: DecoderModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        token: Int[Tensor, "1 1"],
        slots: Int[Tensor, " so_far"],
        keys: Buffers,
        values: Buffers,
    ) -> Float[Tensor, "1 vocab"]:
        layers = [
            FixedCache(k, v, slots, mixer.pattern.reach[0])
            for k, v, mixer in zip(keys, values, self.model.stack.mixers, strict=True)
        ]
        return self.model.next(token, cache=KVCache(layers, length=slots.shape[0] - 1))
