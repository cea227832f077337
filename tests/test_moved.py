"""Former import paths: each still works, gives the same module, and says where it is now."""

import subprocess
import sys
import warnings
from importlib import import_module

import pytest

import addnorm
from addnorm.moved import MOVED, new_paths


@pytest.mark.parametrize("old", MOVED)
def test_a_former_path_gives_the_names_of_the_new_modules(old: str) -> None:
    sys.modules.pop(old, None)
    paths = MOVED[old].split()
    with warnings.catch_warnings(action="ignore"):
        import_module(old.rpartition(".")[0])  # may have moved, too
    with pytest.warns(FutureWarning, match=f"{old} is now {' and '.join(paths)}"):
        former = import_module(old)
    for module in map(import_module, paths):
        assert module.__doc__
        for name, value in vars(module).items():
            if getattr(value, "__module__", "") == module.__name__:  # of its own, not imported
                assert getattr(former, name) is value
    with pytest.raises(AttributeError, match="nothing"):
        former.nothing  # noqa: B018


def test_where_a_module_is_now() -> None:
    assert not {path for paths in MOVED.values() for path in paths.split()} & MOVED.keys()
    assert new_paths("addnorm.train.optim") == ["addnorm.training.optim"]
    assert new_paths("addnorm.training.optim") == []
    assert new_paths("addnorm.nothing") == []
    missing = pytest.raises(ModuleNotFoundError, match=r"addnorm\.training\.nothing")
    with warnings.catch_warnings(action="ignore"), missing:  # the package may not be imported yet
        import_module("addnorm.train.nothing")


@pytest.mark.long
def test_a_function_with_the_name_of_a_former_package_is_called_and_holds_its_modules() -> None:
    script = """
import inspect, sys, warnings
import addnorm as an
assert "torch" not in sys.modules
before = an.train
from addnorm.runs.in_memory import train as function
assert before is function
warnings.simplefilter("ignore")
import addnorm.train.trainer as trainer
from addnorm.train.trainer import Trainer
import addnorm.training.trainer
assert trainer is addnorm.training.trainer is an.train.trainer
from addnorm import train, check
assert inspect.signature(train) == inspect.signature(function) and train.__doc__ == function.__doc__
assert callable(train) and callable(check) and train is an.train
import addnorm.check.run
report = an.check("decoder/rotary/*", sample=1)
assert not report.failed and "combinations" in report.text()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_functions_are_public() -> None:
    assert callable(addnorm.train)
    assert callable(addnorm.check)
