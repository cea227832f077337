"""Weights that processes split get their first values in the same order in every process."""

from collections.abc import Generator

import pytest
from tests.training.parallel.test_stages import KINDS, Alone, model_of
from torch import distributed, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from addnorm.training.parallel.shard import sharded, twin_of
from addnorm.training.parallel.stages import StagedModel


@pytest.fixture(scope="module")
def mesh() -> Generator[DeviceMesh]:
    """This process alone."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    distributed.destroy_process_group()


def order_of_filling(kind: str, rank: int, mesh: DeviceMesh) -> list[str]:
    """The names of the weights in the order in which the process of a stage fills them."""
    twin = twin_of(model_of(kind)[0])
    StagedModel(twin, 2, Alone(rank, 2))
    pending = {parameter: name for name, parameter in twin.named_parameters()}
    order = list[str]()

    def fill(part: nn.Module) -> None:
        order.extend(pending.pop(p) for p in part.parameters() if p in pending)

    sharded(twin, mesh, fill)
    assert not pending
    return order


@pytest.mark.parametrize("kind", KINDS)
def test_every_stage_fills_the_same_weight_at_a_time(kind: str, mesh: DeviceMesh) -> None:
    assert order_of_filling(kind, 0, mesh) == order_of_filling(kind, 1, mesh)
