"""A trained model is a plain value: every operation takes one, and a run adds methods alone."""

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest
import torch

from addnorm.errors import InputError
from addnorm.generate import GreedyConfig
from addnorm.runs.inference.text import write
from addnorm.runs.opening import open_model
from addnorm.runs.run import Run
from addnorm.runs.trained_model import DTYPES, TrainedModel, device_named, dtype_named

RunOf = Callable[[str], Path]


def test_operations_take_a_model_without_a_run(run_of: RunOf) -> None:
    model = open_model(run_of("language"))
    assert type(model) is TrainedModel
    [[greedy]] = write(model, ["To be"], GreedyConfig(), max_new_tokens=12)
    assert greedy.text == Run.of(model).generate("To be", beams=1, max_new_tokens=12)


def test_a_run_holds_what_its_model_holds(run_of: RunOf) -> None:
    model = open_model(run_of("classification"))
    run = Run.of(model)
    assert fields(run) == fields(model)
    assert all(getattr(run, one.name) is getattr(model, one.name) for one in fields(model))
    assert repr(model) == repr(run).replace("<Run", "<TrainedModel")


def test_moving_returns_the_same_object(run_of: RunOf) -> None:
    run = Run.open(run_of("classification"))
    assert run.to(dtype="bfloat16") is run
    assert {weight.dtype for weight in run.weights.values()} == {torch.bfloat16}
    assert type(run.written_to(None)) is Run


@pytest.mark.parametrize("name", DTYPES)
def test_a_type_by_its_name_and_by_itself(name: str) -> None:
    assert dtype_named(name) == dtype_named(DTYPES[name]) == getattr(torch, name)


@pytest.mark.parametrize("name", ["flaot32", "int8", torch.int64])
def test_types_that_weights_do_not_have(name: str | torch.dtype) -> None:
    with pytest.raises(InputError, match=r"is not a dtype of weights.* Valid: float32, float16"):
        dtype_named(name)


def test_devices() -> None:
    assert device_named("cpu") == device_named(torch.device("cpu")) == torch.device("cpu")
    with pytest.raises(InputError, match=r"'cpuu'` is not available\. Did you mean 'cpu'"):
        device_named("cpuu")
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match=r"'cuda'` is not available\. torch sees: cpu\."):
            device_named("cuda")
