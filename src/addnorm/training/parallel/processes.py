"""Several processes that train together, connected by `torch.distributed`."""

import json
import logging
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh

from addnorm.data.batches.batch import Batch, counted
from addnorm.data.ids.encoding import IGNORE
from addnorm.errors import InputError, RankLostError
from addnorm.models.weights import weights_of
from addnorm.training.interruptions import to_standard_error
from addnorm.training.parallel.masks import Rows, masks_by_row
from addnorm.training.parallel.members import Member, ended
from addnorm.training.parallel.shard import empty, fill, sharded
from addnorm.training.parallel.tensors import is_part, whole
from addnorm.training.parallel.world import OneProcess, World

LONGEST = timedelta(days=7)
"""How long a process waits for the others, as while one validates; a lost one ends it at once."""


@contextmanager
def connected(say: Callable[[str], None], *, shard: bool) -> Generator["Processes"]:
    """The processes that `torchrun` has started, connected to each other.

    Raises `RankLostError` if one of them ends.
    """
    # It says that a CPU exchanges matrices by gathering them.
    logging.getLogger("torch.distributed.tensor._collective_utils").setLevel(logging.ERROR)
    distributed.init_process_group("gloo", timeout=LONGEST)
    world = None
    try:
        world = Processes(say, shard=shard)
        yield world
    except RuntimeError as error:
        if world is not None and (lost := world.lost(error)) is not None:
            raise RankLostError(f"{lost} has ended") from error
        raise
    finally:
        distributed.destroy_process_group()


class Processes(World):
    """Processes that split the rows of each batch and, with `shard`, the weights.

    Sums are taken over all of them, never means: a loss is divided once, by the tokens of all.
    """

    def __init__(
        self, say: Callable[[str], None] = to_standard_error, *, shard: bool = False
    ) -> None:
        super().__init__(say)
        self.rank, self.size = distributed.get_rank(), distributed.get_world_size()
        self.shard = shard
        self.mesh = init_device_mesh("cpu", (self.size,), mesh_dim_names=("data",))
        self.rows = Rows(0, 1, 1)
        self.stands_in = False
        """Whether this process has no rows of the last batch, and runs one of another process."""
        self._own: dict[str, Tensor] = {}
        described = self.texts(Member.here(self.rank).text)
        self.members = [Member.read(rank, text) for rank, text in enumerate(described)]

    # The model.

    def place(self, model: nn.Module) -> nn.Module:
        """The model with the leading process's weights, or its shards, in place of the model's."""
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):  # pyright: ignore[reportPrivateUsage]
                raise InputError(
                    f"parallel.data = {self.size}: {type(module).__name__} would normalise by the "
                    "rows of each process and not of the batch: use another norm, or one process"
                )
        for tensor in weights_of(model).values():
            distributed.broadcast(tensor, 0)
        if not self.shard:
            return model
        twin = sharded(model, self.mesh)
        empty(model)
        return twin

    @contextmanager
    def whole(self, model: nn.Module, placed: nn.Module) -> Generator[None]:
        """In this context, the leading process has the present weights in `model`."""
        if not self.shard:
            yield
            return
        fill(model, placed, keep=self.leads)
        try:
            yield
        finally:
            empty(model)

    def restore(self, model: nn.Module, placed: nn.Module) -> None:
        """Give `model` the weights of `placed`, in every process."""
        if self.shard:
            fill(model, placed, keep=True)

    def masks(self, model: nn.Module, *, copies: int) -> AbstractContextManager[None]:
        """Draw the masks of dropout by row (see `masks_by_row`)."""
        return masks_by_row(model, lambda: self.rows, self.rank, copies)

    # Rows and sums.

    def share(self, batch: Batch) -> Batch:
        """As many rows as every other process takes, or one more.

        Of a batch with fewer rows than processes, some run a row that another process counts.
        """
        n = len(batch.targets)
        first, last = n * self.rank // self.size, n * (self.rank + 1) // self.size
        self.stands_in = first == last
        if self.stands_in:
            first, last = 0, 1
        self.rows = Rows(first, last, n)
        inputs = {name: self._taken(name, tensor) for name, tensor in batch.inputs.items()}
        targets = batch.targets[first:last]
        if self.stands_in and targets.dtype == torch.long:
            targets = torch.full_like(targets, IGNORE)
        soft = None if batch.soft_targets is None else batch.soft_targets[first:last]
        indices = batch.indices[first:last] if len(batch.indices) == n else batch.indices
        return replace(
            batch,
            inputs=inputs,
            targets=targets,
            n_tokens=counted(targets),
            indices=indices,
            soft_targets=soft,
        )

    def _taken(self, name: str, tensor: Tensor) -> Tensor:
        each, rest = divmod(len(tensor), self.rows.total)
        if rest or not each:
            raise InputError(
                f"a batch has {self.rows.total} rows of targets, and {len(tensor)} of {name}: its "
                "rows cannot be split among processes: leave [parallel] out"
            )
        return tensor[each * self.rows.first : each * self.rows.last]

    def counted(self, sums: Tensor) -> Tensor:
        """The sums, or zero if another process counts the rows of the last share."""
        return sums * 0 if self.stands_in else sums

    def total(self, sums: Tensor) -> Tensor:
        """The sum over all processes."""
        total = sums.detach().clone()
        distributed.all_reduce(total)
        return total

    def total_load(self, choices: Tensor, n_tokens: int) -> tuple[Tensor, int]:
        """The choices of each expert and the number of tokens, summed over all processes."""
        own = torch.cat([choices, choices.new_tensor([n_tokens])])
        totals = self.total(self.counted(own))
        return totals[:-1], int(totals[-1])

    def norm(self, gradients: Sequence[Tensor]) -> Tensor:
        """`√Σ g²` over all values of all gradients, whichever process holds them."""
        return whole(nn.utils.get_total_norm(gradients))

    def sum_gradients(self, model: nn.Module) -> None:
        """Sum the gradients over all processes: one sum for all parameters of a type.

        A parameter without a gradient in any process has none.
        """
        self._own = OneProcess().own_gradients(model)
        alike: dict[torch.dtype, list[nn.Parameter]] = {}
        for parameter in model.parameters():
            if parameter.requires_grad and not is_part(parameter):
                alike.setdefault(parameter.dtype, []).append(parameter)
        for parameters in alike.values():
            _sum_gradients(parameters)

    def own_gradients(self, model: nn.Module) -> dict[str, Tensor]:
        """The gradients before they were summed; of shards, after."""
        return self._own

    # What all processes agree on.

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in any process."""
        return bool(self.total(torch.tensor(int(flag))))

    def same(self, text: Callable[[], str]) -> bool:
        """Whether a text is the same in every process."""
        return len({*self.texts(text())}) == 1

    def scores(self, measure: Callable[[], dict[str, float]]) -> dict[str, float]:
        """What the leading process measures, in every process."""
        text = json.dumps(measure()) if self.leads else ""
        return json.loads(self.texts(text)[0])

    def texts(self, text: str) -> Sequence[str]:
        """The texts of all processes, by rank."""
        encoded = text.encode()
        longest = torch.tensor(len(encoded))
        distributed.all_reduce(longest, distributed.ReduceOp.MAX)
        padded = torch.zeros(int(longest) + 1, dtype=torch.uint8)
        padded[: len(encoded)] = torch.tensor([*encoded], dtype=torch.uint8)
        gathered = [torch.empty_like(padded) for _ in range(self.size)]
        distributed.all_gather(gathered, padded)
        return [bytes(row.tolist()).rstrip(b"\0").decode() for row in gathered]

    def gathered(self, tensor: Tensor) -> Tensor:
        """The whole of a tensor of shards in the leading process; elsewhere nothing of it."""
        full = whole(tensor)
        return full if self.leads else full.new_empty(0)

    def where(self, problem: str, *, own_loss: Tensor, sound: bool) -> str:
        """The problem of the first process with a loss that is not finite, or else not sound.

        Of shards, whose gradients are summed as they arise, only a loss names the process.
        """
        lossless = not bool(own_loss.isfinite().all())
        suspect = lossless or not (sound or self.shard)
        texts = self.texts(f"{'loss' if lossless else 'part' if suspect else ''} {problem}")
        for reason in ("loss ", "part "):
            for rank, text in enumerate(texts):
                if text.startswith(reason):
                    return f"on {self.members[rank]} {text.removeprefix(reason)}"
        return problem

    def lost(self, error: RuntimeError) -> str | None:
        """Which process has ended, if that caused the error; else None."""
        member = ended([m for m in self.members if m.rank != self.rank]) if _cut(error) else None
        if _cut(error) and member is None:
            return "another process"
        return None if member is None else str(member)

    def wait(self) -> None:
        """Wait until every process is here, so that all see what one has written before."""
        distributed.barrier()

    @contextmanager
    def in_turn(self) -> Generator[None]:
        """The leading process goes first, then the others; all wait for the last."""
        if not self.leads:
            self.wait()
        yield
        if self.leads:
            self.wait()
        self.wait()


def _sum_gradients(parameters: Sequence[nn.Parameter]) -> None:
    grads: list[Any] = [parameter.grad for parameter in parameters]
    first = parameters[0]
    present = torch.tensor([float(g is not None) for g in grads]).to(first)
    parts = [
        (torch.zeros_like(p) if g is None else g).flatten()
        for p, g in zip(parameters, grads, strict=True)
    ]
    flat = torch.cat([present, *parts])
    distributed.all_reduce(flat)
    counts, *sums = flat.split([len(parameters), *(len(part) for part in parts)])
    for parameter, count, total in zip(parameters, counts.tolist(), sums, strict=True):
        parameter.grad = total.view_as(parameter) if count else None


def _cut(error: RuntimeError) -> bool:
    """Whether an error is about the connection to another process."""
    return isinstance(error, distributed.DistError) or "gloo" in str(error)
