"""Small trainings, each by one process and by several; a script for `torchrun` and for one.

`torchrun --nproc-per-node N -m tests.training.parallel.cases FOLDER` trains every case by every
plan for so many processes, into `FOLDER/data`, `FOLDER/shard` and so on, and with every fault that
is planted.
"""

import copy
import json
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from math import prod
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import torch
from tests.training import tiny
from torch import Tensor, distributed, nn

from addnorm.data.batches.buckets import Buckets
from addnorm.data.ids.encoding import IGNORE, Encoded, EncodedCorpus
from addnorm.errors import Interrupted, NonFiniteError
from addnorm.models import DecoderConfig, EncoderConfig, EncoderDecoderConfig
from addnorm.models.weights import weights_of
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.attention.core import EagerCoreConfig
from addnorm.nn.context import Context
from addnorm.nn.feedforward import FeedForwardConfig, GatedFeedForwardConfig
from addnorm.nn.heads import ClassificationHeadConfig, TokenHeadConfig
from addnorm.nn.hyper_connections import HyperConnectionsConfig
from addnorm.nn.moe import MixtureOfExpertsConfig
from addnorm.nn.norms import RMSNormConfig
from addnorm.nn.positions import KERPLEConfig
from addnorm.nn.residuals import SandwichNormConfig
from addnorm.nn.routers import SigmoidRouterConfig
from addnorm.nn.token_ahead import MultiTokenConfig
from addnorm.tasks.registry import TASKS
from addnorm.training.callbacks import Heard
from addnorm.training.checkpoint import save_weights
from addnorm.training.optim import AdadeltaConfig, MaxNormConfig, MuonConfig
from addnorm.training.parallel import context, draws, loss, pieces, positions, processes, shard
from addnorm.training.parallel.launch import joined
from addnorm.training.parallel.plan import ParallelTrainingConfig, launched
from addnorm.training.parallel.tensors import local
from addnorm.training.parallel.world import OneProcess, World
from addnorm.training.settings import TrainConfig
from addnorm.training.trainer import Trainer, Validation

STEPS = 20
MOE = MixtureOfExpertsConfig(n_experts=3, expert=FeedForwardConfig(d_ff=8), balance=0.5)
CORRECTED = replace(
    MOE, router=SigmoidRouterConfig(correction_rate=0.05), shared=FeedForwardConfig(d_ff=4)
)
HEADS = AttentionConfig(n_heads=2, bias=False)
CASES: Mapping[str, Mapping[str, Any]] = {
    "decoder": {},
    "encoder": {"model": "encoder"},
    "encoder_decoder": {"model": "translator", "double": True},
    "untied": {"parts": {"head": TokenHeadConfig(tied=False)}},
    "shared_layers": {"parts": {"n_layers": 3, "n_distinct_layers": 1}},
    "few_rows": {"tokens": 10},
    "moe": {"parts": {"feedforward": MOE}},
    "moe_few_rows": {
        "parts": {"feedforward": CORRECTED},
        "tokens": 10,
        "accumulate": 2,
        "double": True,
    },
    "accumulate": {"accumulate": 3},
    "clip": {"clip": 0.1},
    "ema": {"ema": 0.9},
    "muon": {"parts": {"feedforward": MOE}, "optimizer": MuonConfig(), "double": True},
    "adadelta": {"optimizer": AdadeltaConfig(), "lr": 1.0},
    "max_norm": {"constraint": MaxNormConfig(bound=0.5, parameters="*q_proj.weight")},
    "max_norm_of_columns": {"constraint": MaxNormConfig(bound=0.5, parameters="*out_proj.weight")},
    "smoothing": {"label_smoothing": 0.1},
    "dropout": {"parts": {"dropout": 0.2}},
    "dropout_few_rows": {"model": "translator", "parts": {"dropout": 0.2}, "tokens": 14},
    "attention_dropout": {
        "parts": {
            "attention": AttentionConfig(n_heads=2, bias=False, dropout=0.2, core=EagerCoreConfig())
        }
    },
    "feature_dropout": {
        "model": "translator",
        "parts": {"feedforward": GatedFeedForwardConfig(d_ff=9, dropout=0.3)},
    },
    "one_key_head": {
        "parts": {
            "attention": AttentionConfig(n_heads=2, n_kv_heads=1, qk_norm=RMSNormConfig()),
            "position": KERPLEConfig(),
        },
        "clip": 0.1,
    },
    "norm_over_heads": {
        "parts": {
            "attention": AttentionConfig(
                n_heads=2, n_kv_heads=1, qk_norm=RMSNormConfig(), qk_norm_over="heads"
            ),
            "residual": SandwichNormConfig(norms="output"),
            "feedforward": FeedForwardConfig(d_ff=9, activation="xielu"),
        },
        "double": True,
    },
    "layer_drop": {"parts": {"layer_drop": 0.3, "n_layers": 3, "dropout": 0.1}},
    "r_drop": {"parts": {"dropout": 0.2}, "r_drop": 1.0},
    "checkpointed": {"parts": {"dropout": 0.2}, "activation_checkpointing": "block"},
    "streams": {
        "parts": {"residual": HyperConnectionsConfig(streams=3), "dropout": 0.1},
        "double": True,
    },
    "ahead": {"parts": {"mtp": MultiTokenConfig(depth=2)}},
    "exits": {"parts": {"n_layers": 3, "exits": (1, 2)}, "double": True},
    "validated": {
        "parts": {"feedforward": CORRECTED},
        "validate": True,
        "select": "best",
        "validate_every": 3,
        "ema": 0.5,
        "double": True,
    },
    "averaged": {"average": 2, "save_every": 5},
}
PLANS: Mapping[str, Mapping[str, Any]] = {
    "data": {},
    "shard": {"shard": True},
    "tensor": {"tensor": 2},
    "context": {"context": 2},
    "pipeline": {"pipeline": 2},
}
"""What each plan splits besides rows; of four processes, two have other rows by each."""
PAIRS: Mapping[str, Mapping[str, Any]] = {
    "shard_tensor": {"shard": True, "tensor": 2},
    "shard_context": {"shard": True, "context": 2},
    "shard_pipeline": {"shard": True, "pipeline": 2},
    "context_tensor": {"context": 2, "tensor": 2},
    "context_pipeline": {"context": 2, "pipeline": 2},
    "tensor_pipeline": {"tensor": 2, "pipeline": 2},
}
"""What four processes split in two ways."""
TRIPLES: Mapping[str, Mapping[str, Any]] = {
    "data_tensor_pipeline": {"tensor": 2, "pipeline": 2},
    "shard_tensor_context": {"shard": True, "tensor": 2, "context": 2},
    "context_tensor_pipeline": {"context": 2, "tensor": 2, "pipeline": 2},
}
"""What eight processes split in three ways."""
OF_EIGHT = (
    *("decoder", "encoder", "encoder_decoder", "few_rows", "moe", "accumulate", "clip", "muon"),
    *("smoothing", "dropout", "feature_dropout", "one_key_head", "checkpointed"),
)
"""The cases that eight processes try."""

SCHEDULES = ("gpipe", "interleaved")
DEEP: Mapping[str, Any] = {"parts": {"n_layers": 5, "dropout": 0.1}, "accumulate": 3}
"""The case of the other schedules; of three batches, the interleaved one takes two, then one."""
OF_TWO = {
    "shard": ("untied", "shared_layers", "accumulate", "muon", "exits"),
    "tensor": (
        *("encoder", "norm_over_heads", "attention_dropout", "feature_dropout", "one_key_head"),
        *("moe_few_rows", "muon", "smoothing"),
    ),
    "context": ("encoder", "one_key_head", "moe", "moe_few_rows", "smoothing", "validated"),
    "pipeline": ("untied", "shared_layers", "accumulate", "norm_over_heads", "r_drop"),
}
"""The cases that two processes try by a plan besides those of each; the others are slow."""
BY_EACH = ("decoder", "encoder_decoder", "clip", "ema", "dropout")
"""The cases that two processes try by each plan; by `data` also all that no other plan tries."""


def cases_of(plan: str, size: int) -> list[str]:
    """The cases that a plan is tried on in so many processes.

    A stage has no early exits, and tokens ahead are predicted by a whole layer from whole texts.
    """
    if size == 8:
        return [*OF_EIGHT]
    if size == 2:
        elsewhere = {name for names in OF_TWO.values() for name in names}
        again = ("moe", "accumulate", "validated")
        by_data = [name for name in CASES if name in again or name not in {*BY_EACH, *elsewhere}]
        return [*BY_EACH, *OF_TWO.get(plan, by_data)]
    left_out = {"exits"} if "pipeline" in plan else set[str]()
    if any(split in plan for split in ("context", "tensor", "pipeline")):
        left_out |= {"ahead"}
    return [name for name in CASES if name not in left_out]


def world_of(size: int, **plan: Any) -> processes.Processes:
    """The processes by a plan, with as many of `data` as are left."""
    n = size // (prod(plan.get(name, 1) for name in ("context", "tensor", "pipeline")))
    return processes.Processes(plan=ParallelTrainingConfig(data=n, **plan))


def corpus(model: str) -> EncodedCorpus:
    """Texts, translations, or texts in one of three classes."""
    if model != "encoder":
        return tiny.examples(pairs=model == "translator")
    rng = Random(0)
    rows = [[2, *(rng.randrange(4, 13) for _ in range(rng.randrange(1, 10))), 3] for _ in range(23)]
    train = [Encoded(i, row, [sum(row) % 3]) for i, row in enumerate(rows)]
    task = TASKS["classification"]
    return EncodedCorpus(task.name, bos_id=2, pad_id=0, train=train, layout=task.layout)


def build(model: str, parts: Mapping[str, Any]) -> nn.Module:
    """An untrained model of a width that two processes do not divide."""
    torch.manual_seed(0)
    fields = {"d_model": 14, "n_layers": 2, "dropout": 0.0, "attention": HEADS, **parts}
    if model == "encoder":
        return EncoderConfig(head=ClassificationHeadConfig(), **fields).build(tiny.VOCAB, 3)
    kind = EncoderDecoderConfig if model == "translator" else DecoderConfig
    return kind(**fields).build(tiny.VOCAB)


def trainer(
    folder: Path,
    world: World,
    model: str = "decoder",
    *,
    tokens: int = 40,
    parts: Mapping[str, Any] | None = None,
    validate: bool = False,
    double: bool = False,
    change: Callable[[str, Tensor], object] = lambda name, weight: None,
    **settings: Any,
) -> Trainer:
    """A trainer of a case in the given processes, whose weights begin as `change` leaves them."""
    data = corpus(model)
    fixed = {"steps": STEPS, "save_every": 20, "device": "cpu", "lr": 0.01}
    if double:
        net = build(model, parts or {}).to(torch.float64)
    else:
        net = world.built(lambda: build(model, parts or {}))
    world.begin(net, change)
    validation = Validation(lambda m: {"loss": measured(m)}) if validate else None
    return Trainer(
        net,
        Buckets(data, data.train, tokens, seed=5),
        TrainConfig(**{**fixed, **settings}),
        folder,
        validation=validation,
        world=world,
    )


def measured(model: nn.Module) -> float:
    """A figure of a decoder's whole weights."""
    with torch.no_grad():
        return float(model(torch.arange(4, 12)[None]).square().sum())


def bytes_held(trainer: Trainer) -> int:
    """The bytes of weights and optimiser state in this process."""
    states = [v for o in trainer.optimizers for s in o.state.values() for v in s.values()]
    tensors = [*trainer.model.parameters()]
    held = {id(t): local(t.detach()).nbytes for t in [*tensors, *states] if isinstance(t, Tensor)}
    return sum(held.values())


def run(folder: Path, world: World, **case: Any) -> Trainer:
    """Train a case; its whole final weights are in `final.safetensors`."""
    made = trainer(folder, world, **case)
    made.resume()
    made.fit()
    if world.leads:
        (folder / "bytes.json").write_text(json.dumps(bytes_held(made)))
    outline = weights_of(made.whole)
    made.lead_whole(lambda w: save_weights(folder / "final.safetensors", w, outline), None)
    return made


# Faults that are planted, to see that the comparison finds them.


@contextmanager
def mean_for_sum() -> Generator[None]:
    summed = processes.sum_over

    def mean(parameters: Any, group: Any) -> None:
        summed(parameters, group)
        for parameter in parameters:
            parameter.grad = None if parameter.grad is None else parameter.grad / 2

    with (
        mock.patch.object(processes, "sum_over", mean),
        mock.patch.object(shard.FSDPModule, "set_gradient_divide_factor"),
        mock.patch.object(shard.FSDPModule, "set_force_sum_reduction_for_comms"),
    ):
        yield


def own_norm() -> AbstractContextManager[object]:
    def norm(_: World, parameters: Any) -> Tensor:
        gradients = [local(p.grad) for p in parameters]
        return nn.utils.get_total_norm([g[: len(g) // 2 + 1] for g in gradients])

    return mock.patch.object(processes.Processes, "norm", norm)


def tokens_of_a_rank() -> AbstractContextManager[object]:
    share_of_loss = Trainer.share_of_loss

    def by_own_tokens(self: Trainer, batch: Any, n_tokens: int) -> Tensor:
        return share_of_loss(self, batch, self.world.size * self.world.share(batch).n_tokens)

    return mock.patch.object(Trainer, "share_of_loss", by_own_tokens)


def built_at_once() -> AbstractContextManager[object]:
    return mock.patch.object(processes.Processes, "built", OneProcess.built)


@contextmanager
def untied() -> Generator[None]:
    sharded = processes.sharded

    def apart(model: nn.Module, mesh: Any, _: object) -> nn.Module:
        other: Any = copy.deepcopy(model)
        other.head.weight = nn.Parameter(other.head.weight.detach().clone())
        return sharded(other, mesh)

    with built_at_once(), mock.patch.object(processes, "sharded", apart):
        yield


@contextmanager
def untied_pieces() -> Generator[None]:
    split = processes.split_model

    def apart(model: Any, group: Any) -> Any:
        model.head.weight = nn.Parameter(model.head.weight.detach().clone())
        return split(model, group)

    with built_at_once(), mock.patch.object(processes, "split_model", apart):
        yield


def counted_twice() -> AbstractContextManager[object]:
    return mock.patch.object(pieces.Piece, "copies", 1)


def untied_stages() -> AbstractContextManager[object]:
    return mock.patch.object(pieces.StagePiece, "sum_of_copies", lambda _, tensor: tensor)


def table_counted_twice() -> AbstractContextManager[object]:
    return mock.patch.object(processes.Processes, "_copies_of", return_value=1)


def draws_of_a_stage() -> AbstractContextManager[object]:
    return mock.patch.object(draws.Draws, "needed", return_value=False)


def loss_of_every_rank() -> AbstractContextManager[object]:
    def total(_: World, sums: Tensor) -> Tensor:
        sums = sums.detach().clone()
        distributed.all_reduce(sums)
        return sums

    return mock.patch.object(processes.Processes, "total", total)


def smoothed_by_piece() -> AbstractContextManager[object]:
    of_piece = loss.loss_and_gradient

    def apart(logits: Tensor, targets: Tensor, smoothing: float, vocabulary: Any) -> Any:
        value, gradient = of_piece(logits, targets, smoothing, vocabulary)
        counted = (targets != IGNORE)[:, None] * smoothing
        change = counted / vocabulary.total - counted / logits.shape[-1]
        return value, gradient + change

    return mock.patch.object(loss, "loss_and_gradient", apart)


def own_keys() -> AbstractContextManager[object]:
    return mock.patch.object(pieces.Piece, "sum_of_copies", lambda _, tensor: tensor)


def same_masks() -> AbstractContextManager[object]:
    return mock.patch.object(processes.Processes, "masks", return_value=nullcontext())


def balance_of_a_rank() -> AbstractContextManager[object]:
    return mock.patch.object(processes.Processes, "total_load", OneProcess.total_load)


def by_place(**fields: Callable[[Context], Any]) -> AbstractContextManager[object]:
    """Contexts of this process's tokens with some fields of another rule."""
    part = Context.part

    def wrong(ctx: Context, slots: Tensor, others: Tensor) -> Context:
        right = part(ctx, slots, others)
        return replace(right, **{name: of(right) for name, of in fields.items()})

    return mock.patch.object(Context, "part", wrong)


def own_slots() -> AbstractContextManager[object]:
    return by_place(
        q_slots=lambda ctx: torch.arange(ctx.past, ctx.within),
        kv_slots=lambda ctx: torch.arange(ctx.within),
    )


def own_positions() -> AbstractContextManager[object]:
    return by_place(kv_positions=lambda ctx: torch.arange(ctx.within)[None])


def mean_of_gradients_of_keys() -> AbstractContextManager[object]:
    of_sum = pieces.ConnectedGroup.sum_for_each
    return mock.patch.object(
        pieces.ConnectedGroup, "sum_for_each", lambda group, parts: of_sum(group, parts) / 2
    )


def shifted_after_the_cut() -> AbstractContextManager[object]:
    def shifted(split: context.SplitTexts, targets: Tensor) -> Tensor:
        own = positions.Positions(split.group, targets.shape[1]).own
        tokens = targets[:, own[1:] - 1]
        return torch.cat([tokens, torch.full_like(targets[:, :1], IGNORE)], 1)

    return mock.patch.object(context.SplitTexts, "targets", shifted)


def loss_of_whole_texts() -> AbstractContextManager[object]:
    return mock.patch.object(processes.Processes, "counted_loss", processes.Processes.counted)


def load_of_padding() -> AbstractContextManager[object]:
    return mock.patch.object(processes.Processes, "own_tokens", OneProcess.own_tokens)


FAULTS: Mapping[str, tuple[Callable[[], AbstractContextManager[object]], str, str]] = {
    "mean_for_sum": (mean_for_sum, "data", "decoder"),
    "mean_for_sum_of_shards": (mean_for_sum, "shard", "decoder"),
    "own_norm": (own_norm, "data", "clip"),
    "own_norm_of_shards": (own_norm, "shard", "clip"),
    "tokens_of_a_rank": (tokens_of_a_rank, "data", "decoder"),
    "untied": (untied, "shard", "decoder"),
    "same_masks": (same_masks, "data", "dropout"),
    "same_masks_of_heads": (same_masks, "tensor", "attention_dropout"),
    "same_masks_of_features": (same_masks, "tensor", "feature_dropout"),
    "untied_pieces": (untied_pieces, "tensor", "decoder"),
    "norm_of_a_piece": (own_norm, "tensor", "clip"),
    "copies_counted_twice": (counted_twice, "tensor", "one_key_head"),
    "loss_of_every_rank": (loss_of_every_rank, "tensor", "decoder"),
    "tokens_of_a_piece": (tokens_of_a_rank, "tensor", "decoder"),
    "smoothed_by_piece": (smoothed_by_piece, "tensor", "smoothing"),
    "own_keys": (own_keys, "tensor", "one_key_head"),
    "untied_stages": (untied_stages, "pipeline", "decoder"),
    "norm_of_a_stage": (own_norm, "pipeline", "clip"),
    "table_counted_twice": (table_counted_twice, "pipeline", "clip"),
    "draws_of_a_stage": (draws_of_a_stage, "pipeline", "dropout"),
    "balance_of_a_rank": (balance_of_a_rank, "data", "moe"),
    "causal_by_place": (own_slots, "context", "decoder"),
    "positions_by_place": (own_positions, "context", "one_key_head"),
    "mean_for_sum_of_positions": (mean_for_sum, "context", "decoder"),
    "mean_of_gradients_of_keys": (mean_of_gradients_of_keys, "context", "decoder"),
    "shifted_after_the_cut": (shifted_after_the_cut, "context", "decoder"),
    "tokens_of_positions": (tokens_of_a_rank, "context", "decoder"),
    "loss_of_whole_texts": (loss_of_whole_texts, "context", "encoder"),
    "same_masks_of_positions": (same_masks, "context", "dropout"),
    "load_of_padding": (load_of_padding, "context", "moe"),
}


def every_case(out: Path) -> None:
    """Train every case by every plan, and every fault."""
    n = launched().processes
    plans = TRIPLES if n == 8 else {**PLANS, **PAIRS} if n == 4 else PLANS
    with joined(ParallelTrainingConfig(data=n)) as rows:
        worlds: dict[str, World] = {name: world_of(n, **plan) for name, plan in plans.items()}
        for plan, world in worlds.items():
            for name in cases_of(plan, n):
                run(out / plan / name, world, **CASES[name])
        if n == 8:
            return
        for schedule in SCHEDULES:
            world = world_of(n, pipeline=2, schedule=schedule)
            run(out / "schedules" / schedule, world, **DEEP)
        if n == 2:
            for name, (fault, plan, case) in FAULTS.items():
                with fault():
                    trainer(out / "faults" / name, worlds[plan], **CASES[case]).fit(until=8)
        resume_at_another_plan(out, worlds)
        for name, world in worlds.items():
            begins(out / "begins" / name, world)
            not_finite(out / "not_finite" / name, world)
        stopped(out / "stopped", rows)


def resume_at_another_plan(out: Path, worlds: Mapping[str, World]) -> None:
    """Go on by another plan where one stopped."""
    for first, then in (pair for pair in RESUMED_BY if worlds.keys() >= {*pair}):
        folder = out / "resumed" / f"{first}_{then}"
        trainer(folder, worlds[first], **RESUMED).fit(until=10)
        save_again(folder, worlds[then])
        run(folder, worlds[then], **RESUMED)
    for first in ("shard", "tensor", "context", "pipeline"):
        trainer(out / "resumed" / f"{first}_one", worlds[first], **RESUMED).fit(until=10)


def save_again(folder: Path, world: World) -> None:
    """Save the checkpoint that a run resumes from, as these processes hold it, in `again`."""
    made = trainer(folder, world, **RESUMED)
    made.resume()
    made.folder = folder / "again"
    made.save()


def begins(folder: Path, world: World) -> None:
    """Write the weights with which a model begins."""
    folder.mkdir(parents=True, exist_ok=True)
    made, file = trainer(folder, world, **BEGINS), folder / "first.safetensors"
    made.lead_whole(lambda w: save_weights(file, w, weights_of(made.whole)), None)


def not_finite(folder: Path, world: World) -> None:
    """In step 4 the last process alone has a loss that is not a number: what each says of it."""
    made = trainer(folder, world)
    objective = made.loss_of

    def broken_loss(*inputs: Any) -> Tensor:
        broken = made.state.step == 3 and world.rank == world.size - 1
        return objective(*inputs) * (float("nan") if broken else 1.0)

    made.loss_of = broken_loss
    made.fit(until=3)
    before = {name: local(w).clone() for name, w in weights_of(made.model).items()}
    try:
        made.fit()
    except NonFiniteError as error:
        said = str(error)
    unchanged = all(torch.equal(local(w), before[n]) for n, w in weights_of(made.model).items())
    answer = {"said": said, "unchanged": unchanged, "step": made.state.step}
    (folder / f"rank{world.rank}.json").write_text(json.dumps(answer))


def stopped(folder: Path, world: World) -> None:
    """The last process alone is asked to stop after step 7: where each stops."""
    made = trainer(folder, world)
    at_7 = tiny.At(7, tiny.interrupt if world.rank == world.size - 1 else bool)
    made.callbacks.add(at_7, Heard())
    try:
        made.fit()
    except Interrupted as error:
        (folder / f"rank{world.rank}.json").write_text(json.dumps(error.step))


BEGINS: Mapping[str, Any] = {
    "parts": {"feedforward": CORRECTED, "init": "bert", "n_layers": 3},
    "change": lambda name, weight: weight[:2].mul_(len(name)),
}
RESUMED_BY = (
    ("data", "shard"),
    ("shard", "tensor"),
    ("tensor", "context"),
    ("context", "pipeline"),
    ("pipeline", "data"),
    ("shard_tensor", "shard_pipeline"),
    ("shard_pipeline", "tensor_pipeline"),
    ("tensor_pipeline", "shard_context"),
    ("shard_context", "shard_tensor"),
)
RESUMED: Mapping[str, Any] = {
    "double": True,
    "optimizer": MuonConfig(),
    "ema": 0.9,
    "parts": {"dropout": 0.2},
    "accumulate": 2,
}


if __name__ == "__main__":
    torch.set_num_threads(1)
    every_case(Path(sys.argv[1]))
