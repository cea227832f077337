"""Memory of a plan: what the processes of small meshes hold and send, to the byte."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.training.parallel.conftest import started
from tests.training.parallel.planner import mesh

from addnorm.nn.init import without_values
from addnorm.runs.planning import states_of
from addnorm.training.parallel.plan import ParallelTrainingConfig
from addnorm.training.parallel.planner.memory import memory
from addnorm.training.parallel.planner.plan import Plan
from addnorm.training.parallel.planner.sizes import sizes_of
from addnorm.training.parallel.planner.traffic import exchanges
from addnorm.training.parallel.planner.training import OURS, Training


def measured(file: Path, processes: int) -> dict[str, Any]:
    """What each process holds and sends, by plan and case."""
    done = started("planner.mesh", file, processes)
    assert done.returncode == 0, done.stderr
    return json.loads(file.read_text())


def predicted(case: mesh.Case, plan: ParallelTrainingConfig, rank: int) -> dict[str, Any]:
    """What a process holds and sends, by arithmetic."""
    settings = case.settings()
    with without_values():
        model = case.config().build(mesh.VOCAB)
    sizes = sizes_of(model, 32, plan.tensor, rank % plan.tensor)
    process = rank // (plan.data * plan.context * plan.tensor)
    training = Training(
        rows=mesh.ROWS * mesh.ACCUMULATE,
        seq_len=mesh.SEQ_LEN,
        states=states_of(settings.optimizer),
        average=settings.ema is not None,
        smoothed=settings.label_smoothing > 0,
        on_cpu=True,
    )
    planned = Plan(
        data=plan.data,
        shard=plan.shard,
        tensor=plan.tensor,
        context=plan.context,
        pipeline=plan.pipeline,
        schedule=plan.schedule,
        stages=plan.stages // plan.pipeline,
        rows=mesh.ROWS // plan.data,
        checkpointing=settings.activation_checkpointing,
    )
    held = vars(memory(sizes, training, OURS, planned, process))
    sent = dict[str, float]()
    for exchange in exchanges(sizes, training, OURS, planned, process):
        collective = exchange.collective
        sent[collective] = sent.get(collective, 0) + exchange.bytes
    names = ("weights", "gradients", "optimizer", "average")
    return {"held": {name: held[name] for name in names}, "sent": sent}


def check(outcomes: dict[str, Any], processes: int) -> None:
    """Bytes are exact: of shards in the first process, whose rows are as many as in any."""
    for name, plan in mesh.plans(processes).items():
        for case, what in mesh.CASES.items():
            for rank, outcome in enumerate(outcomes[f"{name}/{case}"]):
                expected, place = predicted(what, plan, rank), (name, case, rank)
                if plan.shard and rank // plan.tensor % (plan.data * plan.context):
                    assert all(outcome["held"][k] <= v for k, v in expected["held"].items()), place
                    continue
                assert outcome["held"] == expected["held"], place
                if case != "muon" or not plan.shard:  # torch itself exchanges shards of matrices
                    assert outcome["sent"] == expected["sent"], place


@pytest.mark.long
def test_two_processes_hold_and_send_as_planned(tmp_path: Path) -> None:
    check(measured(tmp_path / "mesh.json", 2), 2)


@pytest.mark.slow
def test_four_processes_hold_and_send_as_planned(tmp_path: Path) -> None:
    check(measured(tmp_path / "mesh.json", 4), 4)
