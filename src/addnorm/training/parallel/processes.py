"""Several processes that train together, connected by `torch.distributed`."""

import json
import logging
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from datetime import timedelta
from typing import TypeVar
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Int
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh

from addnorm.data.batches.batch import Batch, counted
from addnorm.data.ids.encoding import IGNORE
from addnorm.errors import InputError, RankLostError
from addnorm.machine import available_memory, return_freed_pages
from addnorm.models.weights import weights_of
from addnorm.nn.attention.core import EagerCore
from addnorm.nn.context import Context
from addnorm.nn.deferred_init import InitialWeight, changed, deferred_init
from addnorm.nn.heads import TokenHead
from addnorm.training.interruptions import to_standard_error
from addnorm.training.loss import head_cross_entropy_sum
from addnorm.training.objective import LossFunction
from addnorm.training.parallel.clock import Clock
from addnorm.training.parallel.context import SplitTexts, split_texts
from addnorm.training.parallel.draws import Draws
from addnorm.training.parallel.gradients import have_alike, sum_of_copies, sum_over
from addnorm.training.parallel.loss import vocabulary_cross_entropy_sum
from addnorm.training.parallel.masks import PieceOfTensor, Rows, masks_by_row
from addnorm.training.parallel.members import Member, ended
from addnorm.training.parallel.own_parts import check_batch_norms
from addnorm.training.parallel.pieces import AnyPiece, ConnectedGroup, Group, Piece, StagePiece
from addnorm.training.parallel.pipeline import Pipeline, Step
from addnorm.training.parallel.plan import ParallelTrainingConfig
from addnorm.training.parallel.shard import empty, filling, sharded, twin_of
from addnorm.training.parallel.stages import StagedModel, holders
from addnorm.training.parallel.tensor import Layout, split_model
from addnorm.training.parallel.tensors import (
    is_part,
    local,
    name_pieces,
    piece_of,
    piece_within_stage,
    start_of,
    whole,
)
from addnorm.training.parallel.whole_weights import WholeWeights, computing_with
from addnorm.training.parallel.world import ModelT, OneProcess, World
from addnorm.training.stored import SavedTensor

LONGEST = timedelta(days=7)
"""How long a process waits for the others, as while one validates; a lost one ends it at once."""


RECORDED = "16"
"""How many of its last exchanges torch keeps, of which a message names the last."""

T = TypeVar("T")


@contextmanager
def connected(
    say: Callable[[str], None],
    plan: ParallelTrainingConfig,
    *,
    patience: float | None = None,
    hint: str = "",
) -> Generator["Processes"]:
    """The processes that `torchrun` has started, connected to each other.

    With `patience`, one that does nothing for so many seconds ends all (see `Clock`). Raises
    `RankLostError` if one of them ends.
    """
    # It says that a CPU exchanges matrices by gathering them.
    logging.getLogger("torch.distributed.tensor._collective_utils").setLevel(logging.ERROR)
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", RECORDED)
    distributed.init_process_group("gloo", timeout=LONGEST)
    world = None
    try:
        world = Processes(say, plan=plan)
        with world.watched(patience, hint):
            yield world
    except RuntimeError as error:
        if world is not None and (lost := world.lost(error)) is not None:
            raise lost from error
        raise
    finally:
        distributed.destroy_process_group()


class Processes(World):
    """Processes that split rows, weights, layers and parts of layers by a plan.

    `tensor` neighbours take the same rows, and split heads, features and vocabulary; those of
    `context` split the positions of each text, and those of `pipeline` the layers. Sums are taken
    over all that have other tokens, never means: a loss is divided once, by the tokens of all.
    """

    def __init__(
        self,
        say: Callable[[str], None] = to_standard_error,
        *,
        plan: ParallelTrainingConfig,
    ) -> None:
        super().__init__(say)
        self.rank, self.size = distributed.get_rank(), distributed.get_world_size()
        self.plan, self.holds_pieces, self.gathers = plan, plan.splits_weights, plan.shard
        sizes, names = (plan.pipeline, plan.data, plan.context, plan.tensor), ("data", "context")
        mesh = init_device_mesh("cpu", sizes, mesh_dim_names=("pipeline", *names, "tensor"))
        self.data, self.context = (ConnectedGroup(mesh.get_group(name)) for name in names)
        sizes, names = (sizes[0], plan.data * plan.context, sizes[3]), ("pipeline", "tokens")
        self.mesh = init_device_mesh("cpu", sizes, mesh_dim_names=(*names, "tensor"))
        self.pipeline, self.tokens, self.tensor = (
            ConnectedGroup(self.mesh.get_group(name)) for name in (*names, "tensor")
        )
        """The processes with other layers, with other tokens, and with other parts of the same."""
        self.everyone, self.saving = _all("all"), _all("saving")
        """All processes: in the main thread, and in one that saves at the same time."""
        self.rows = Rows(0, 1, 1)
        self.positions = SplitTexts(self.context)
        self.stands_in = False
        """Whether this process has no rows of the last batch, and runs one of another process."""
        self._initial: WeakKeyDictionary[nn.Module, InitialWeight] = WeakKeyDictionary()
        """What draws the weights of the models that are built without memory."""
        self._own: dict[str, Tensor] = {}
        self._copies = 1
        """How often each row of a batch is in the model's input."""
        self._pipelines: WeakKeyDictionary[nn.Module, Pipeline] = WeakKeyDictionary()
        self._layouts: WeakKeyDictionary[nn.Module, Layout] = WeakKeyDictionary()
        self._vocabularies: WeakKeyDictionary[nn.Module, Piece] = WeakKeyDictionary()
        """Of the heads whose logits are split, which piece of them this process computes."""
        described = self.texts(Member.here(self.rank).text)
        self.members = [Member.read(rank, text) for rank, text in enumerate(described)]
        self.clock: Clock | None = None

    @contextmanager
    def watched(self, patience: float | None, hint: str) -> Generator[None]:
        """In this context, a process that is idle for `patience` seconds ends all."""
        if patience is None:
            yield
            return
        self.clock = Clock(self.members, self.rank, patience, hint)
        self.clock.start()
        try:
            yield
        finally:
            self.clock.stop()

    def stepped(self, step: int, saved: int) -> None:
        """Record the last step and the last saved step for messages, and free the gradients."""
        self._own = {}
        if self.clock is not None:
            self.clock.step, self.clock.saved = step, saved

    def lead(self, do: Callable[[], T], otherwise: T) -> T:
        """The result of `do` in the leading process; the others wait without a time limit."""
        with self.awaited():
            return super().lead(do, otherwise)

    def awaited(self) -> AbstractContextManager[None]:
        """In this context, the other processes wait for this one without a time limit."""
        return nullcontext() if self.clock is None else self.clock.leading()

    # The model.

    @property
    def has_twins(self) -> bool:
        """Whether this process trains a copy of the model that holds parts of its weights."""
        return self.plan.splits_weights or self.plan.context > 1

    def place(self, model: nn.Module, *, by_token: bool = True) -> nn.Module:
        """The model with the leading process's weights, or a twin that holds parts of them."""
        if self.data.size > 1:
            check_batch_norms(model, "rows", "parallel.data = 1")
        initial = self._initial.pop(model, None)
        drawn = weights_of(model).values() if initial is None else model.buffers()
        for tensor in drawn:
            distributed.broadcast(tensor, 0)
        if not self.has_twins:
            return model
        twin = twin_of(model)
        if self.context.size > 1:
            self.positions = split_texts(twin, self.context, by_token=by_token)
        layout = split_model(twin, self.tensor) if self.tensor.size > 1 else Layout()
        pieces: dict[str, AnyPiece] = {**layout.parameters}
        staged, draws = None, None
        if self.pipeline.size > 1:
            held = holders(model, self.plan.stages, self.pipeline.size)
            length = self.positions.own_length
            staged = StagedModel(twin, self.plan.stages, self.pipeline, length)
            draws = Draws(model, staged.stages) if Draws.needed(model) else None
            pieces = self._hold(model, twin, held, layout.parameters)
        fill = filling(twin, model, pieces, self.everyone, initial)
        if self.plan.shard:
            twin = sharded(twin, self.mesh["tokens"], fill)
        fill(twin)
        self._layouts[twin] = layout
        self._vocabularies.update(layout.outputs)
        name_pieces(twin, pieces)
        if staged is not None:
            self._pipelines[twin] = Pipeline(staged, self.pipeline, self.plan.schedule, draws)
        empty(model.parameters())
        return_freed_pages()
        return twin

    def built(self, build: Callable[[], ModelT]) -> ModelT:
        """A new model for `place`, without memory for weights if processes split them."""
        if not self.plan.splits_weights:
            return build()
        model, self._initial[model] = deferred_init(build)
        return model

    def begin(self, model: nn.Module, change: Callable[[str, Tensor], None]) -> None:
        """Let each weight begin as `change` leaves it: where none has memory, when it is drawn."""
        if model in self._initial:
            self._initial[model] = changed(model, self._initial[model], change)
        else:
            super().begin(model, change)

    def _hold(
        self,
        model: nn.Module,
        twin: nn.Module,
        held: Mapping[str, tuple[int, ...]],
        within: Mapping[str, Piece],
    ) -> dict[str, AnyPiece]:
        """Keep in `twin` only the parameters that this pipeline process holds.

        `held` are the holders of each by name, `within` its piece in the processes of a stage.
        """
        shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
        several: list[tuple[int, ...]] = [of for of in dict.fromkeys(held.values()) if len(of) > 1]
        sharers = dict(zip(several, map(self._sharers, several), strict=True))
        pieces = dict[str, AnyPiece]()
        for name, parameter in twin.named_parameters():
            of = held[name]
            piece = StagePiece(self.pipeline, of, shapes[name], within.get(name), sharers.get(of))
            if not piece.held:
                parameter.data = piece.of(parameter.data)
            pieces[name] = piece
        return pieces

    def _sharers(self, of: tuple[int, ...]) -> Group | None:
        """The group of these members of this process's pipeline; all processes must call this."""
        if len(of) == self.pipeline.size:
            return self.pipeline
        ranks = self.mesh.mesh[list(of)].flatten(1).T.tolist()
        group, _ = distributed.new_subgroups_by_enumeration(ranks, timeout=LONGEST)
        return ConnectedGroup(group) if isinstance(group, distributed.ProcessGroup) else None

    def lead_whole(
        self,
        model: nn.Module,
        placed: nn.Module,
        do: Callable[[Mapping[str, Tensor]], T],
        otherwise: T,
        *,
        often: bool = False,
    ) -> T:
        """The result of `do` in the leading process, with the whole weights of `placed`.

        Weights that are split are gathered one after another, those of a block while it computes.
        Where they are needed `often`, they are kept as far as half of the free memory allows.
        """
        if not self.has_twins:
            return self.lead(lambda: do(weights_of(model)), otherwise)

        def computed(weights: WholeWeights) -> T:
            with computing_with(model, weights):
                return do(weights)

        return_freed_pages()
        with self.awaited():
            room = available_memory() // 2 if often else 0
            result = WholeWeights(placed, self.everyone, room).led(computed, otherwise)
        return_freed_pages()
        return result

    def masks(self, model: nn.Module, *, copies: int) -> AbstractContextManager[None]:
        """In this context, draw dropout masks by row and piece (see `masks_by_row`).

        Parts that draw by themselves draw alike where processes compute the same.
        """
        self._copies = copies
        layout = self._layouts.get(model, Layout())

        def rank(module: nn.Module) -> int:
            return self.rank if module in layout.inside else self.rank - self.tensor.rank

        def pieces(module: nn.Module, x: Tensor) -> Sequence[PieceOfTensor]:
            split, positions = layout.dropouts.get(module), self.positions.piece(module, x)
            piece = None if split is None else split.piece(x, self.tensor)
            return [part for part in (positions, piece) if part is not None]

        def alone(core: EagerCore, q: Tensor, k: Tensor) -> bool:
            return self.positions.in_tiles(core, q, k, copies * self.rows.total)

        return masks_by_row(
            model,
            lambda: self.rows,
            copies=copies,
            rank=rank,
            pieces=pieces,
            alone=alone if self.context.size > 1 else None,
        )

    # Stages.

    def objective(self, model: nn.Module, objective: LossFunction) -> LossFunction:
        """The objective; in a pipeline, the last stage computes the loss."""
        pipeline = self._pipelines.get(model)
        return objective if pipeline is None else pipeline.objective(objective)

    def differentiate(
        self,
        model: nn.Module,
        batches: Sequence[Batch],
        loss_of: Callable[[Batch], Tensor],
        scale: Callable[[Tensor], Tensor],
    ) -> list[Tensor]:
        """Accumulate the gradients of micro-batches, in a pipeline through its stages."""
        pipeline = self._pipelines.get(model)
        if pipeline is None:
            return super().differentiate(model, batches, loss_of, scale)
        shares = [self.share(batch).inputs for batch in batches]
        length = max(map(pipeline.model.length, shares)) * self._copies
        inputs = [(batch.doubled() if self._copies > 1 else batch).inputs for batch in batches]
        states = [] if pipeline.draws is None else [pipeline.draws.states(x) for x in inputs]
        step = Step(batches, loss_of, scale, self._remembered, states)
        pipeline.differentiate(step, length)
        return step.losses

    def _remembered(self) -> Callable[[Tensor], None]:
        """A function that restores the rows and positions of the present micro-batch."""
        rows, restore_positions = self.rows, self.positions.remembered()

        def restore(_: Tensor) -> None:
            self.rows = rows
            restore_positions()

        return restore

    # Rows and sums.

    def share(self, batch: Batch) -> Batch:
        """This process's rows of a batch: all processes take equally many, or one more.

        Of a batch with fewer rows than processes, some run a row that another process counts.
        """
        n = len(batch.targets)
        rank, size = self.data.rank, self.data.size
        first, last = n * rank // size, n * (rank + 1) // size
        self.stands_in = first == last
        if self.stands_in:
            first, last = 0, 1
        self.rows = Rows(first, last, n)
        inputs = {name: self._taken(name, tensor) for name, tensor in batch.inputs.items()}
        targets = self.positions.targets(batch.targets[first:last])
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

    def own_tokens(self, inputs: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The inputs, with the masks of the positions that this process computes."""
        return {**inputs, **self.positions.masks(inputs)}

    def counted(self, sums: Tensor) -> Tensor:
        """The sums, or zero if another process counts the rows of its last share."""
        return sums * 0 if self.stands_in else sums

    def counted_loss(self, loss: Tensor) -> Tensor:
        """The loss, or zero if another process counts these rows or these whole texts."""
        counts = self.positions.by_token or self.context.rank == 0
        return self.counted(loss if counts else loss * 0)

    def total(self, sums: Tensor) -> Tensor:
        """The sum over all processes with other tokens or other layers."""
        sums = self.tokens.sum(sums)
        return self.pipeline.sum(sums) if self.pipeline.size > 1 else sums

    def total_load(self, choices: Tensor, n_tokens: int) -> tuple[Tensor, int]:
        """The choices of each expert and the number of tokens, summed over all processes."""
        own = torch.cat([choices, choices.new_tensor([n_tokens])])
        totals = self.tokens.sum(self.counted(own))
        return totals[:-1], int(totals[-1])

    def cross_entropy_sum(
        self,
        head: TokenHead,
        x: Float[Tensor, "batch seq d_model"],
        ctx: Context,
        targets: Int[Tensor, "batch seq"],
        label_smoothing: float,
    ) -> Float[Tensor, ""]:
        """The cross-entropy of a head, whose rows may be split over processes."""
        vocabulary = self._vocabularies.get(head)
        if vocabulary is None:
            return head_cross_entropy_sum(head, x, ctx, targets, label_smoothing)
        return vocabulary_cross_entropy_sum(head, x, ctx, targets, label_smoothing, vocabulary)

    def norm(self, parameters: Sequence[nn.Parameter]) -> Tensor:
        """`√Σ g²` over all values of all gradients, each counted once over all processes.

        A value that n processes hold counts for one n-th in each.
        """
        by_copies: dict[int, list[Tensor]] = {}
        for parameter in parameters:
            if parameter.grad is not None:
                by_copies.setdefault(self._copies_of(parameter), []).append(parameter.grad)
        squares = torch.zeros((), dtype=torch.float64)
        for copies, gradients in sorted(by_copies.items()):
            squares += whole(nn.utils.get_total_norm(gradients)).double().square() / copies
        squares = self.pipeline.sum(self.tensor.sum(squares))
        return squares.sqrt().to(parameters[0].dtype)

    def _copies_of(self, parameter: nn.Parameter) -> int:
        """How many processes with the same rows hold a value of a parameter."""
        piece, within = piece_of(parameter), piece_within_stage(parameter)
        stages = len(piece.holders) if isinstance(piece, StagePiece) else 1
        return stages * (self.tensor.size if within is None else within.copies)

    def sum_gradients(self, model: nn.Module) -> None:
        """Sum the gradients over all processes, all parameters of a dtype at once.

        A parameter without a gradient in any process has none. Of a weight that several processes
        hold whole, each with a part of the gradient, those of `tensor` and of `pipeline` are summed
        first.
        """
        self._own = {n: g for n, g in OneProcess().own_gradients(model).items() if g.numel()}
        if self.pipeline.size > 1:
            have_alike([*model.parameters()], self.pipeline)
        for parameter in model.parameters():
            sum_of_copies(parameter)
        if self.tokens.size == 1:
            return
        alike: dict[torch.dtype, list[nn.Parameter]] = {}
        for parameter in model.parameters():
            if parameter.requires_grad and not is_part(parameter):
                alike.setdefault(parameter.dtype, []).append(parameter)
        for parameters in alike.values():
            sum_over(parameters, self.tokens)

    def own_gradients(self, model: nn.Module) -> dict[str, Tensor]:
        """The gradients before their sum over processes; for shards, after it."""
        return self._own

    # What all processes agree on.

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in any process."""
        flags = torch.tensor(int(flag))
        distributed.all_reduce(flags)
        return bool(flags)

    def same(self, text: Callable[[], str]) -> bool:
        """Whether a string is the same in every process."""
        return len({*self.texts(text())}) == 1

    def agreed(self, scores: dict[str, float]) -> dict[str, float]:
        """The scores computed by the leading process."""
        return json.loads(self.texts(json.dumps(scores))[0])

    def texts(self, text: str) -> Sequence[str]:
        """The strings of all processes, by rank."""
        return self.everyone.texts(text)

    # Saving.

    def to_save(self, tensor: Tensor, parameter: Tensor | None) -> SavedTensor | None:
        """The part that this process saves of a tensor split like a parameter; None for nothing.

        Of several processes that hold the same, the first saves it.
        """
        piece = None
        if parameter is not None and tensor.shape == parameter.shape:
            piece = piece_of(parameter)
        within = None if piece is None else piece.within
        saves = (
            (is_part(tensor) or self.tokens.rank == 0)
            and (self.tensor.rank == 0 if within is None else within.leads)
            and (piece.leads if isinstance(piece, StagePiece) else self.pipeline.rank == 0)
        )
        if not saves:
            return None
        return SavedTensor(
            local(tensor), start_of(tensor, parameter) if self.holds_pieces else None
        )

    def exchange(self, text: str) -> Sequence[str]:
        """The strings of all processes, by rank; called from the thread that saves."""
        return self.saving.texts(text)

    def where(self, problem: str, *, own_loss: Tensor, sound: bool) -> str:
        """The problem of the first process whose loss is not finite, or else whose part is unsound.

        Of stages it is the first whose values are not finite, or else the last with such gradients,
        since the gradients of the stages before it come from there. Of shards, whose gradients are
        summed as they arise, only a loss names the process.
        """
        staged = self.pipeline.size > 1
        broken = any(p.broken for p in self._pipelines.values())
        lossless = broken if staged else not bool(own_loss.isfinite().all())
        suspect = lossless or not (sound or self.plan.shard)
        texts = self.texts(f"{'loss' if lossless else 'part' if suspect else ''} {problem}")
        ranked = [*enumerate(texts)]
        for reason, order in (("loss ", ranked), ("part ", ranked[::-1] if staged else ranked)):
            for rank, text in order:
                if text.startswith(reason):
                    return f"on {self.members[rank]} {text.removeprefix(reason)}"
        return problem

    def lost(self, error: RuntimeError) -> RankLostError | None:
        """The loss of another process, if that caused the error; else None.

        One that has ended is gone only when the launcher, whose child it is, has seen it.
        """
        if not _cut(error):
            return None
        verdict = None if self.clock is None else self.clock.judged()
        if verdict is not None:
            return RankLostError(
                verdict.text, reported=self.clock is not None and self.clock.has_reported
            )
        member = ended([m for m in self.members if m.rank != self.rank])
        return RankLostError(f"{member or 'another process'} ended", seen=member is not None)

    def wait(self) -> None:
        """Wait for every process, so that all see the files that one has written before."""
        distributed.barrier()

    @contextmanager
    def in_turn(self) -> Generator[None]:
        """The leading process goes first, then the others; all wait for the last."""
        if not self.leads:
            self.wait()
        with self.awaited():
            yield
        if self.leads:
            self.wait()
        self.wait()


def _all(name: str) -> ConnectedGroup:
    """A new group of all processes, usable while another group is busy."""
    group = distributed.new_group(timeout=LONGEST, group_desc=name)
    assert isinstance(group, distributed.ProcessGroup)
    return ConnectedGroup(group)


def _cut(error: RuntimeError) -> bool:
    """Whether an error is about the connection to another process."""
    return isinstance(error, distributed.DistError) or "gloo" in str(error)
