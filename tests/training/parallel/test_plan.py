"""A plan and the number of processes there are."""

import pytest

from addnorm.errors import InputError
from addnorm.training.parallel.plan import (
    OUR_RUN,
    Launched,
    ParallelTrainingConfig,
    check_processes,
    launched,
)


def test_torchrun_says_which_process_this_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "3", "WORLD_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)
    assert launched() == Launched()  # other launchers set these too
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    assert launched() == Launched(3, 4)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", f"{OUR_RUN}x")
    assert launched() == Launched(3, 4, by_us=True)


def test_a_plan_for_another_number_of_processes_is_refused() -> None:
    check_processes(ParallelTrainingConfig(data=2), 2)
    with pytest.raises(InputError, match=r"a plan for 2 processes, and there is 1: give `proc"):
        check_processes(ParallelTrainingConfig(data=2), 1)
    with pytest.raises(InputError, match=r"there are 3: .* or `parallel.data = 3`"):
        check_processes(ParallelTrainingConfig(), 3)
    plan = ParallelTrainingConfig(data=3, tensor=2)
    check_processes(plan, 6)
    with pytest.raises(InputError, match=r"data = 3, tensor = 2 is a plan for 6 processes.* 4: "):
        check_processes(plan, 4)
    with pytest.raises(InputError, match=r"or `parallel.data = 2, tensor = 2`"):
        check_processes(plan, 4)
    plan = ParallelTrainingConfig(context=3, tensor=2)
    check_processes(plan, 6)
    with pytest.raises(InputError, match=r"or `parallel.data = 2, context = 3, tensor = 2`"):
        check_processes(plan, 12)
    with pytest.raises(InputError, match=r"or `parallel.data = 4, context = 1, tensor = 2`"):
        check_processes(plan, 8)


def test_the_nearest_plan_names_what_it_changes() -> None:
    with pytest.raises(InputError, match=r"or `parallel.data = 1, pipeline = 1`"):
        check_processes(ParallelTrainingConfig(pipeline=2), 1)
    plan = ParallelTrainingConfig(data=2, tensor=2, pipeline=2)
    with pytest.raises(InputError, match=r"data = 2, tensor = 2, pipeline = 2 is a plan for 8"):
        check_processes(plan, 4)
    with pytest.raises(InputError, match=r"or `parallel.data = 1, tensor = 1, pipeline = 2`"):
        check_processes(plan, 2)


def test_interleaved_stages_are_two_in_each_process() -> None:
    assert ParallelTrainingConfig(pipeline=3).stages == 3
    assert ParallelTrainingConfig(pipeline=3, schedule="interleaved").stages == 6
    assert ParallelTrainingConfig(schedule="interleaved").stages == 1


def test_stages_wait_while_the_first_batches_enter_and_the_last_leave() -> None:
    assert ParallelTrainingConfig(data=3).idle(1) == 0
    assert ParallelTrainingConfig(pipeline=4).idle(3) == 1 / 2
    assert ParallelTrainingConfig(pipeline=4, schedule="interleaved").idle(6) == 1 / 5
