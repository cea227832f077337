"""The processor's name says what its libraries may use, and makes a name of a file."""

import os
import platform
from pathlib import Path

import pytest

from addnorm.processor import LIMITS, cores, file_name, processor


@pytest.mark.parametrize("name", LIMITS)
def test_a_limit_is_another_processor(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(name, raising=False)
    before = processor()
    monkeypatch.setenv(name, "AVX2")
    assert processor() == f"{before}, {name}=AVX2"


def test_a_name_of_a_file() -> None:
    assert file_name("AMD EPYC, avx512_bf16") == "amd-epyc-avx512_bf16"
    assert file_name("Intel(R) Xeon(R) 8 / 2.1GHz,") == "intel-r-xeon-r-8-2.1ghz"


def test_the_cores_that_this_process_may_use() -> None:
    assert 1 <= cores() <= (os.cpu_count() or 1)


def test_a_processor_without_a_name_has_its_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    told = "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\nFeatures\t: fp asimd\n"
    monkeypatch.setattr(Path, "read_text", lambda *_: told)
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    for name in LIMITS:
        monkeypatch.delenv(name, raising=False)
    assert processor() == "aarch64 0x41 0xd0c"
