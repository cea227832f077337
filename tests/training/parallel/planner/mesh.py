"""What the processes of a small mesh hold and send in a step; a script for `torchrun`.

`torchrun --nproc-per-node N -m tests.training.parallel.planner.mesh FILE` trains every case by
every plan for so many processes, and writes the bytes of each process as JSON.
"""

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from addnorm.data.batches.windows import Windows
from addnorm.models import DecoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.feedforward import GatedFeedForwardConfig
from addnorm.nn.heads import TokenHeadConfig
from addnorm.nn.norms import RMSNormConfig
from addnorm.nn.positions import RotaryConfig
from addnorm.nn.residuals import PreNormConfig
from addnorm.training.activation_checkpointing import checkpointed_activations
from addnorm.training.optim import MuonConfig
from addnorm.training.parallel.launch import joined
from addnorm.training.parallel.plan import ParallelTrainingConfig, launched
from addnorm.training.parallel.processes import Processes
from addnorm.training.parallel.tensors import local
from addnorm.training.settings import TrainConfig
from addnorm.training.trainer import Trainer

ROWS, SEQ_LEN, VOCAB, ACCUMULATE = 4, 16, 101, 2
FEW = 2
"""The numbers of a sum that is about control: whether to stop, the loss of each batch."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model and how it is trained."""

    model: Mapping[str, Any]
    train: Mapping[str, Any]

    def config(self) -> DecoderConfig:
        heads = AttentionConfig(n_heads=4)
        parts = {
            "d_model": 32,
            "n_layers": 5,
            "attention": heads,
            "residual": PreNormConfig(),
            "dropout": 0.0,
        }
        return DecoderConfig(**parts | self.model)  # pyright: ignore[reportArgumentType]

    def settings(self) -> TrainConfig:
        return TrainConfig(steps=4, accumulate=ACCUMULATE, device="cpu", **self.train)


LLAMA = {
    "position": RotaryConfig(),
    "norm": RMSNormConfig(),
    "attention": AttentionConfig(n_heads=4, n_kv_heads=2, bias=False, qk_norm=RMSNormConfig()),
    "feedforward": GatedFeedForwardConfig(d_ff=50),
    "head": TokenHeadConfig(tied=False),
}
CASES = {
    "tied": Case(model={}, train={"ema": 0.9}),
    "llama": Case(model=LLAMA, train={"activation_checkpointing": "block"}),
    "one_key_head": Case(
        model={"attention": AttentionConfig(n_heads=4, n_kv_heads=1)},
        train={"label_smoothing": 0.1},
    ),
    "muon": Case(model={}, train={"optimizer": MuonConfig()}),
}


def plans(processes: int) -> dict[str, ParallelTrainingConfig]:
    """The plans of so many processes."""
    named = {
        "data": ParallelTrainingConfig(data=processes),
        "shard": ParallelTrainingConfig(data=processes, shard=True),
        "tensor": ParallelTrainingConfig(tensor=processes),
        "context": ParallelTrainingConfig(context=processes),
        "pipeline": ParallelTrainingConfig(pipeline=processes),
    }
    if processes == 4:
        named["data_tensor"] = ParallelTrainingConfig(data=2, shard=True, tensor=2)
        named["data_context"] = ParallelTrainingConfig(data=2, shard=True, context=2)
        named["data_pipeline"] = ParallelTrainingConfig(data=2, pipeline=2)
        named["tensor_pipeline"] = ParallelTrainingConfig(tensor=2, pipeline=2)
        named["shard_pipeline"] = ParallelTrainingConfig(data=2, shard=True, pipeline=2)
        named["interleaved"] = ParallelTrainingConfig(pipeline=2, data=2, schedule="interleaved")
    return named


class Collectives(TorchDispatchMode):
    """A context that counts the bytes of whole tensors by collective, as they are called."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = dict[str, int]()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func.namespace == "c10d":
            self.count(func.__name__, args)
        return func(*args, **(kwargs or {}))

    def count(self, name: str, args: Any) -> None:
        sizes = [t.numel() * t.element_size() for t in tree_leaves(args) if isinstance(t, Tensor)]
        collective, size = {
            "allreduce_.default": ("all_reduce", sizes[0]),
            "_allgather_base_.default": ("all_gather", sizes[0]),
            "allgather_.default": ("all_gather", sum(sizes[:-1])),
            "_reduce_scatter_base_.default": ("reduce_scatter", sizes[-1]),
            "reduce_scatter_.default": ("reduce_scatter", sum(sizes[1:])),
            "send.default": ("send", sizes[0]),
            "recv_.default": ("receive", sizes[0]),
        }[name]
        if collective != "receive" and (collective != "all_reduce" or size > 4 * FEW):
            self.bytes[collective] = self.bytes.get(collective, 0) + size


def n_bytes(tensors: Iterable[Tensor]) -> int:
    """The bytes of these tensors in this process."""
    return sum(local(t).numel() * t.element_size() for t in tensors)


def outcome(case: Case, world: Any, folder: Path) -> dict[str, Any]:
    """What a process holds, and what it sends in the second step."""
    torch.manual_seed(0)
    model = case.config().build(VOCAB)
    stream = torch.randint(0, VOCAB, (2000,))
    batches = Windows(stream, ROWS, SEQ_LEN, seed=1)
    config = case.settings()
    trainer = Trainer(model, batches, config, folder, world=world)
    held = dict[str, int]()
    clip = trainer.clip

    def watched(loss: float, own: Tensor) -> float:
        grads = [p.grad for p in trainer.model.parameters()]
        held["gradients"] = n_bytes(grad for grad in grads if grad is not None)
        return clip(loss, own)

    trainer.clip = watched
    with checkpointed_activations(trainer.model, config.activation_checkpointing):
        trainer.update(trainer.next_group())
        with Collectives() as collectives:
            trainer.update(trainer.next_group())
    states = [s for o in trainer.optimizers for s in o.state.values()]
    tensors = [t for state in states for t in state.values() if isinstance(t, Tensor)]
    average = {} if trainer.average is None else trainer.average.weights
    held |= {
        "weights": n_bytes(nn.ParameterList(trainer.model.parameters())),
        "optimizer": n_bytes(tensors),
        "average": n_bytes(average.values()),
    }
    return {"held": held, "sent": collectives.bytes}


def main(file: Path) -> None:
    """Write the outcome of each case by each plan, of all processes by rank."""
    found = dict[str, Any]()
    n = launched().processes
    with joined(ParallelTrainingConfig(data=n)) as every, TemporaryDirectory() as folder:
        for name, plan in plans(n).items():
            world = Processes(plan=plan)
            for case, what in CASES.items():
                own = outcome(what, world, Path(folder, name, case))
                outcomes: list[Any] = [None] * n
                distributed.all_gather_object(outcomes, own)
                found[f"{name}/{case}"] = outcomes
        if every.leads:
            file.write_text(json.dumps(found))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]))
