"""One process joins nothing; a plan for others is refused before it would."""

import pytest

from addnorm.errors import InputError
from addnorm.training.parallel.joining import joined
from addnorm.training.parallel.plan import ParallelTrainingConfig
from addnorm.training.parallel.world import OneProcess


def test_one_process_is_alone() -> None:
    with joined(ParallelTrainingConfig()) as world:
        assert isinstance(world, OneProcess)
        assert world.leads


def test_a_plan_for_more_processes_is_refused() -> None:
    alone = joined(ParallelTrainingConfig(pipeline=2))
    with pytest.raises(InputError, match="is a plan for 2 processes"), alone:
        raise AssertionError
