"""The processor's name says what its libraries may use, and makes a name of a file."""

import os

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
