"""Training over two single-threaded processes: ours, and torch's own methods by hand."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from addnorm.bench import ours
from addnorm.bench.benchmark import Benchmark, Goal, Limit, Ratio
from addnorm.bench.implementation import Cost, Implementation, Round, Run, implementation
from addnorm.bench.plain_torch import Decoder, heads
from addnorm.bench.training import DECODER, DecoderSizes, cross_entropy_of
from addnorm.data.batches.buckets import Batch
from addnorm.training.parallel.plan import ParallelTrainingConfig
from addnorm.training.parallel.processes import Processes
from addnorm.training.settings import TrainConfig
from addnorm.training.trainer import Trainer

Way = Literal["data", "shard", "tensor", "DDP", "fully_shard", "parallelize_module", "saving"]
"""A way of training over two processes: by our plans, or by torch's own function."""

PROCESSES = 2
STEPS = 2
"""The steps of a round."""

FOLLOWER = "from addnorm.bench.parallel import follow; follow({way!r}, {sizes!r}, {store!r})"
"""What the second process runs."""

PLANS = {
    "data": ParallelTrainingConfig(data=PROCESSES),
    "shard": ParallelTrainingConfig(data=PROCESSES, shard=True),
    "tensor": ParallelTrainingConfig(tensor=PROCESSES),
    "saving": ParallelTrainingConfig(data=PROCESSES),
}
"""Our plans."""

Step = Callable[[], None]
After = Callable[[], float | None]
"""Ends a round, and returns the seconds for which a save held up a step, if there was one."""


class SplitAttention(nn.Module):
    """Causal self-attention with separate layers for queries, keys and values."""

    def __init__(self, sizes: DecoderSizes) -> None:
        super().__init__()
        self.n_heads = sizes.n_heads // PROCESSES
        self.q, self.k, self.v, self.out = (
            nn.Linear(sizes.d_model, sizes.d_model) for _ in range(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        """The output, computed with this process's heads."""
        q, k, v = (heads(layer(x), self.n_heads) for layer in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


def step_of(way: Way, sizes: DecoderSizes, folder: Path) -> tuple[Step, After]:
    """A training step by one method, and the function that ends a round of steps."""
    torch.manual_seed(0)
    batches = sizes.batches()
    if way in PLANS:
        return _ours(way, sizes, batches, folder)
    model, rows = _by_torch(way, Decoder(sizes), sizes)
    first, last = (len(batches[0][0]) * (distributed.get_rank() + i) // PROCESSES for i in (0, 1))
    part = slice(first, last) if rows else slice(None)
    return _torch_step(model, cycle([(x[part], y[part]) for x, y in batches])), lambda: None


def _ours(
    way: Way, sizes: DecoderSizes, batches: Sequence[tuple[Tensor, Tensor]], folder: Path
) -> tuple[Step, After]:
    world = Processes(plan=PLANS[way])
    config = TrainConfig(steps=10**9, device="cpu", keep=1)
    model = ours.decoder_config(sizes).build(sizes.vocab_size)
    repeated = ours.Repeated([Batch.of({"tokens": x}, y, []) for x, y in batches])
    trainer = Trainer(model, repeated, config, folder, world=world)
    if way != "saving":
        return lambda: trainer.update(trainer.next_group()), lambda: None
    blocked: list[float] = []

    def step() -> None:
        trainer.update(trainer.next_group())
        if trainer.state.step % STEPS == 1:
            begun = time.perf_counter()
            trainer.save(wait=False)
            blocked.append(time.perf_counter() - begun)

    def after() -> float:
        trainer.background.finish()
        return blocked[-1]

    return step, after


def _by_torch(way: Way, model: Decoder, sizes: DecoderSizes) -> tuple[nn.Module, bool]:
    """The model as torch alone trains it, and whether processes have different rows."""
    mesh = init_device_mesh("cpu", (PROCESSES,))
    match way:
        case "DDP":
            return DistributedDataParallel(model), True
        case "fully_shard":
            for block in model.blocks:
                fully_shard(block, mesh=mesh)
            fully_shard(model, mesh=mesh)
            return model, True
        case _:
            plan: dict[str, Any] = dict.fromkeys(
                ("attention.q", "attention.k", "attention.v", "up"), ColwiseParallel()
            )
            plan |= dict.fromkeys(("attention.out", "down"), RowwiseParallel())
            for block in model.blocks:
                block.attention = SplitAttention(sizes)
                parallelize_module(block, mesh, plan)
            return model, False


def _torch_step(model: nn.Module, stream: Iterator[tuple[Tensor, Tensor]]) -> Step:
    """A step with fused AdamW and gradients clipped to norm one, as in `bench.training`."""
    split = [p for p in model.parameters() if isinstance(p, DTensor)]
    whole = [p for p in model.parameters() if not isinstance(p, DTensor)]
    groups = [group for group in (split, whole) if group]
    optimizer = torch.optim.AdamW([{"params": g} for g in groups], lr=1e-3, fused=True)
    loss_of = cross_entropy_of(model)

    def update() -> None:
        loss = loss_of(*next(stream))
        loss.backward()
        norms = [nn.utils.get_total_norm([p.grad for p in g if p.grad is not None]) for g in groups]
        wholes = [norm.full_tensor() if isinstance(norm, DTensor) else norm for norm in norms]
        total = torch.stack(wholes).norm()
        for group in groups:
            nn.utils.clip_grads_with_norm_(group, 1.0, total)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()

    return update


# The two processes.


def trained(folder: Path, *, way: Way, sizes: DecoderSizes) -> Run:
    """Return rounds of training in this process and another one that it starts."""
    store = Path(tempfile.mkdtemp(dir=folder)) / "store"
    statement = FOLLOWER.format(way=way, sizes=vars(sizes), store=str(store))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    follower = subprocess.Popen([sys.executable, "-c", statement], env=environment)
    step, after = _joined(way, sizes, store, rank=0)

    def run() -> Round:
        _tell(STEPS)
        start = time.perf_counter()
        for _ in range(STEPS):
            step()
        distributed.barrier()
        blocked = after()
        seconds = time.perf_counter() - start
        share = {} if blocked is None else {"blocked %": 100 * blocked / (seconds / STEPS)}
        return Round(seconds, STEPS * sizes.tokens, share)

    assert follower.poll() is None
    return run


def follow(way: str, sizes: dict[str, Any], store: str) -> None:
    """Train as the second process, until the first one ends."""
    ways: dict[str, Way] = {name: name for name in get_args(Way)}
    step, after = _joined(ways[way], DecoderSizes(**sizes), Path(store), rank=1)
    try:
        while n := _tell(0):
            for _ in range(n):
                step()
            distributed.barrier()
            after()
    except RuntimeError:  # the first process has ended
        os._exit(0)


def _joined(
    way: Way, sizes: DecoderSizes, store: Path, *, rank: int
) -> tuple[Step, Callable[[], Any]]:
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=PROCESSES
    )
    return step_of(way, sizes, store.parent / str(rank))


def _tell(n_steps: int) -> int:
    """Broadcast the number of steps from the first process."""
    number = torch.tensor(n_steps)
    distributed.broadcast(number, 0)
    return int(number)


# The benchmarks.

COST = Cost("f32", DECODER.training_flop)
OURS, ALONE = "ours", "ours, one process of two threads"


def _two(name: str, way: Way) -> Implementation:
    return implementation(name, trained, way=way, sizes=DECODER, cost=COST)


def _beside(
    way: Way, peer: Way, goals: tuple[Goal, Goal | None], implementations: Sequence[Implementation]
) -> Benchmark:
    targets = [Ratio(ours=(OURS,), peers=(f"torch {peer}",), goal=goals[0])]
    if goals[1] is not None:
        targets.append(Ratio(ours=(OURS,), peers=(ALONE,), goal=goals[1]))
    return Benchmark(
        name=f"parallel-{way}",
        description=f"training a decoder of 6 × 384 over two processes, parallel.{way}, float32",
        unit="tokens/s",
        implementations=(_two(OURS, way), _two(f"torch {peer}", peer), *implementations),
        targets=tuple(targets),
    )


def benchmarks() -> tuple[Benchmark, ...]:
    """Return the benchmarks of training over several processes."""
    alone = implementation(ALONE, ours.train_decoder, sizes=DECODER, cost=COST)
    same = (Goal(must=0.95, aim=1.0), None)
    saving = "ours, saving every other step"
    return (
        _beside("data", "DDP", (Goal(must=0.97, aim=1.1), Goal(must=0.9, aim=1.1)), (alone,)),
        _beside("shard", "fully_shard", same, ()),
        _beside("tensor", "parallelize_module", same, ()),
        Benchmark(
            name="parallel-saving",
            description="the same by parallel.data, with a checkpoint in each round of two steps",
            unit="tokens/s",
            implementations=(_two(OURS, "data"), _two(saving, "saving")),
            targets=(
                Limit(
                    ours=(saving,),
                    figure="blocked %",
                    goal=Goal(must=5.0, aim=2.0, at_most=True),
                ),
            ),
            details=("blocked %",),
        ),
    )
