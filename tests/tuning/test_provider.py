"""The choices of this machine: from a file, or measured; whatever reaches a model uses them."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from addnorm.errors import InputError
from addnorm.nn import choices as module
from addnorm.nn.choices import KernelChoices, choices, use_choices
from addnorm.tuning import calibration, provider
from addnorm.tuning.provider import check_choices, given_choices, machine_choices, read_choices


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by importing `addnorm.models`, and asked for the first time."""
    monkeypatch.setattr(module, "_provider", machine_choices)
    monkeypatch.setattr(module, "_of_machine", {})


def test_a_file_of_choices_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "kernels.json"
    file.write_text('{"product": "torch", "few_queries": 3}')
    monkeypatch.setenv("ADDNORM_KERNELS", str(file))
    with use_choices(None):
        assert choices() == KernelChoices(product="torch", few_queries=3)


def test_without_a_file_it_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ADDNORM_KERNELS")
    measured: list[str] = []

    def calibrated() -> Any:
        measured.append("")
        return SimpleNamespace(choices=KernelChoices(few_queries=5))

    monkeypatch.setattr(provider, "calibrated", calibrated)
    with use_choices(None):
        assert choices() == choices() == KernelChoices(few_queries=5)
    assert len(measured) == 1


@pytest.mark.parametrize(
    ("choice", "operator"),
    [
        ("attention", "attention_backward"),
        ("product", "linear"),
        ("bfloat16_product", "linear"),
    ],
)
def test_operators_among_them_are_loaded(
    choice: str, operator: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a forward, which compiles nothing."""
    (tmp_path / "kernels.json").write_text(f'{{"{choice}": "operator"}}')
    monkeypatch.setenv("ADDNORM_KERNELS", str(tmp_path / "kernels.json"))
    loaded: list[str] = []
    monkeypatch.setattr(calibration, "has_operator", loaded.append)
    with use_choices(None):
        assert getattr(choices(), choice) == "operator"
    assert loaded == [operator]


EACH = """
import os, sys
import torch  # shared by the children
from importlib import import_module

for name in sys.argv[1:]:
    if not os.fork():
        import_module("addnorm." + name)
        print(name, sys.modules["addnorm.nn.choices"]._provider.__name__, flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.mark.long
def test_whatever_reaches_a_model_installs_it() -> None:
    names = ["generate", "training.trainer"]
    done = subprocess.run(
        [sys.executable, "-c", EACH, *names], capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines() == [f"{name} machine_choices" for name in names], done.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"product": "onednm"}', "product = 'onednm' does not exist. Did you mean 'onednn'?"),
        ('{"few_querys": 3}', "few_querys is not a field. Did you mean 'few_queries'?"),
        ("{", "the file: invalid JSON"),
        ("[]", "the file: "),
        ('{"few_queries": -1}', "few_queries = -1: "),
    ],
)
def test_a_wrong_file_is_named(
    text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "kernels.json"
    file.write_text(text)
    with pytest.raises(InputError) as caught:
        read_choices(file)
    assert str(caught.value).startswith(f"{file}: {message}")
    assert "\n" not in str(caught.value)
    monkeypatch.setenv("ADDNORM_KERNELS", str(file))
    with pytest.raises(InputError) as named:
        given_choices()
    assert str(named.value) == f"ADDNORM_KERNELS: {caught.value}"


def test_a_file_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kernels.json").write_text("{}")
    monkeypatch.setenv("ADDNORM_KERNELS", str(tmp_path / "kernel.json"))
    with use_choices(None), pytest.raises(InputError) as caught:
        check_choices()
    assert str(caught.value).startswith(f"ADDNORM_KERNELS: {tmp_path / 'kernel.json'}: ")
    assert str(caught.value).endswith("Did you mean 'kernels.json'?")
    with use_choices(KernelChoices()):
        check_choices()  # nobody reads it
