"""The machine: freed pages are kept, and the processor's name says what libraries may use."""

import gc
import os
import platform
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from addnorm import machine as module
from addnorm.machine import LIMITS, cores, file_name, instructions, processor, rare_collections

FAULTS = """
import resource
import torch
from addnorm.machine import keep_freed_pages

{keep}
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(8):
        tensors = [torch.ones(2**20 * n) for n in (1, 9, 17)]  # 4, 36 and 68 MB
        del tensors
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(faults())
"""


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="other C libraries are left alone")
def test_pages_are_kept() -> None:
    def faults(keep: str) -> int:
        script = FAULTS.format(keep=keep)
        return int(
            subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout
        )

    assert faults("keep_freed_pages()") < faults("") / 10


def test_collections_are_rare_within_and_as_before_after() -> None:
    before = gc.get_threshold()
    with rare_collections():
        assert gc.get_threshold() == (200_000, *before[1:])
    assert gc.get_threshold() == before


@pytest.mark.parametrize("name", LIMITS)
def test_a_limit_is_another_processor(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(name, raising=False)
    before = processor()
    monkeypatch.setenv(name, "AVX2")
    assert processor() == f"{before}, {name}=AVX2"


X86 = """processor : 0
model name : A Processor
flags : fpu avx2 avx512f
"""
ARM = """processor : 0
BogoMIPS : 243.75
Features : fp asimd sve bf16
CPU implementer : 0x41
CPU architecture: 8
CPU variant : 0x1
CPU part : {}

processor : 1
CPU implementer : 0x41
CPU architecture: 8
CPU part : {}
"""


def test_processors_have_different_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On ARM by their numbers, which is all that Linux says of them."""
    for name in LIMITS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(module, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    texts = [X86, ARM.format("0xd0c", "0xd0c"), ARM.format("0xd0c", "0xd40"), "nothing \xff"]
    found: list[str] = []
    listed: list[str] = []
    for text in texts:
        (tmp_path / "cpuinfo").write_bytes(text.encode("latin-1"))
        found.append(processor())
        listed.append(instructions())
    assert listed == ["fpu avx2 avx512f", "fp asimd sve bf16", "fp asimd sve bf16", ""]
    assert found == [
        "A Processor, avx512f",
        "aarch64 implementer 0x41 architecture 8 part 0xd0c, sve",
        "aarch64 implementer 0x41 architecture 8 part 0xd0c 0xd40, sve",
        "aarch64",
    ]


def test_on_macos_the_system_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CPUINFO", tmp_path / "none")
    monkeypatch.setattr(module.sys, "platform", "darwin")
    monkeypatch.setattr(platform, "processor", lambda: "arm")
    asked = module._brand.__wrapped__
    monkeypatch.setattr(module, "_brand", asked)

    def sysctl(words: list[str], **_: object) -> SimpleNamespace:
        assert words[-1] == "machdep.cpu.brand_string"
        return SimpleNamespace(stdout="Apple M1\n")

    monkeypatch.setattr(module.subprocess, "run", sysctl)
    assert processor().startswith("Apple M1")

    def none(*_: object, **__: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(module.subprocess, "run", none)
    assert processor().startswith("arm")
    assert instructions() == ""


def test_a_name_of_a_file() -> None:
    assert file_name("AMD EPYC, avx512_bf16") == "amd-epyc-avx512_bf16"
    assert file_name("Intel(R) Xeon(R) 8 / 2.1GHz,") == "intel-r-xeon-r-8-2.1ghz"


def test_the_cores_that_this_process_may_use() -> None:
    assert 1 <= cores() <= (os.cpu_count() or 1)
