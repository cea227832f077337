"""Operators are compiled once for each processor and level, and what fails is one message."""

import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from tests.disks import fill

from addnorm.compiler import CompilerError
from addnorm.errors import InputError, MissingOperator
from addnorm.kernels import build
from addnorm.kernels.build import LEVELS, VARIABLE, has_operator, level, levels, load_operator

OPERATOR = """
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>
torch::stable::Tensor same(torch::stable::Tensor x) { return x; }
STABLE_TORCH_LIBRARY_FRAGMENT(addnorm_test, library) {
  library.def("same(Tensor x) -> Tensor");
}
STABLE_TORCH_LIBRARY_IMPL(addnorm_test, CompositeExplicitAutograd, library) {
  library.impl("same", TORCH_BOX(&same));
}
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A source of its own, and an empty folder of caches."""
    (tmp_path / "same.cpp").write_text(OPERATOR)
    monkeypatch.setattr(build, "HERE", tmp_path)
    monkeypatch.setenv("ADDNORM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(build, "_loaded", set())
    has_operator.cache_clear()
    return tmp_path / "cache"


@pytest.fixture
def compiled(cache: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is compiled and what is loaded, in order, without a compiler."""
    steps: list[str] = []
    monkeypatch.setattr(build, "_library", lambda *_: steps.append("compiled") or b"library")
    monkeypatch.setattr(torch.ops, "load_library", lambda _: steps.append("loaded"))
    return steps


def again() -> None:
    """As in a new process."""
    build._loaded.clear()
    load_operator("same")


@pytest.mark.long
def test_an_operator_is_compiled_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load_operator("same")
    x = torch.ones(2)
    assert torch.equal(torch.ops.addnorm_test.same(x), x)
    [library] = cache.iterdir()
    assert library.name.startswith(f"same-{levels()[-1]}-")
    monkeypatch.setenv("CXX", "none")
    load_operator("same")
    assert [*cache.iterdir()] == [library]


def test_threads_at_once_compile_it_once(
    compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def slowly(*_: object) -> bytes:
        time.sleep(0.1)
        compiled.append("compiled")
        return b"library"

    monkeypatch.setattr(build, "_library", slowly)
    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(load_operator, ["same"] * 4)] == [None] * 4
    assert compiled == ["compiled", "loaded"]


def test_each_source_header_and_level_is_compiled(
    compiled: list[str], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    again()
    again()
    assert compiled == ["compiled", "loaded", "loaded"]
    (cache.parent / "same.cpp").write_text("int other;")
    again()
    (cache.parent / "shared.h").write_text("int other;")
    again()
    monkeypatch.setenv(VARIABLE, "scalar")
    again()
    assert compiled[3:] == 3 * ["compiled", "loaded"]
    assert len([*cache.iterdir()]) == 4


def test_a_damaged_library_is_built_again(
    compiled: list[str], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(library: str) -> None:
        if Path(library).read_bytes() != b"library":
            raise OSError("file too short")
        compiled.append("loaded")

    monkeypatch.setattr(torch.ops, "load_library", load)
    again()
    [library] = cache.iterdir()
    library.write_bytes(b"")
    again()
    assert compiled == 2 * ["compiled", "loaded"]
    monkeypatch.setattr(build, "_library", lambda *_: b"other")
    library.unlink()
    with pytest.raises(CompilerError, match="cannot be loaded: file too short"):
        again()


def no_compiler(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("CXX", "none")
    return r"compiling needs a C\+\+ compiler: install g\+\+"


def a_broken_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    compiler = folder / "broken"
    compiler.write_text('#!/bin/sh\necho "x.h: fatal error: not there" >&2\nexit 1\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    return r"the C\+\+ compiler fails: .*broken: x.h: fatal error: not there"


def no_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (folder / "file").touch()
    monkeypatch.setenv("ADDNORM_CACHE", str(folder / "file"))
    return "set ADDNORM_CACHE to another folder"


def no_home(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    def fails() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(build, "cache_folder", fails)
    return r"Could not determine home directory\. Set ADDNORM_CACHE to a folder"


Failure = Callable[[Path, pytest.MonkeyPatch], str]


@pytest.mark.parametrize("failure", [no_compiler, a_broken_one, no_folder, no_home])
@pytest.mark.usefixtures("cache")
def test_what_fails_is_one_line(
    failure: Failure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = failure(tmp_path, monkeypatch)
    with pytest.raises(InputError, match=message) as caught:
        load_operator("same")
    assert "\n" not in str(caught.value)
    with pytest.warns(MissingOperator, match=f"{message}.*; same is computed without it"):
        assert not has_operator("same")
    with warnings.catch_warnings(action="error"):  # said once
        assert not has_operator("same")


def test_a_full_disk_is_one_line(
    disk: Path, compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADDNORM_CACHE", str(disk))
    monkeypatch.setattr(build, "_library", lambda *_: bytes(10_000))
    fill(disk)
    with pytest.warns(MissingOperator, match="No space left"):
        assert not has_operator("same")
    assert [file.name for file in disk.iterdir()] == ["ballast"]


def test_they_can_be_switched_off(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "off")
    assert not has_operator("same")
    with pytest.raises(CompilerError, match="ADDNORM_OPERATORS is off"):
        load_operator("same")
    assert not cache.exists()


@pytest.mark.parametrize(
    ("instructions", "limit", "expected"),
    [
        ("sse2", None, ["scalar"]),
        ("fp asimd asimddp", None, ["scalar", "neon"]),
        ("avx2 fma", None, ["scalar", "avx2"]),
        ("avx2 avx512f", None, ["scalar"]),
        ("avx2 fma avx512f avx512bw avx512dq avx512vl", None, ["scalar", "avx2", "avx512"]),
        ("avx2 fma avx512f avx512bw avx512dq avx512vl avx512_vnni", "avx2", ["scalar", "avx2"]),
        (
            "avx2 fma avx512f avx512bw avx512dq avx512vl avx512_vnni avx512_bf16",
            None,
            ["scalar", "avx2", "avx512", "vnni", "bf16"],
        ),
        ("avx2 fma", "default", ["scalar"]),
        ("avx2 fma", "avx512", ["scalar", "avx2"]),
    ],
)
def test_levels_are_those_of_the_processor_within_the_limit(
    instructions: str, limit: str | None, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "instructions", lambda: instructions)
    monkeypatch.setattr(build.platform, "machine", lambda: "x86_64")
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.delenv("ATEN_CPU_CAPABILITY", raising=False)
    if limit is not None:
        monkeypatch.setenv("ATEN_CPU_CAPABILITY", limit)
    assert levels() == expected
    assert level() == expected[-1]


def test_a_wrong_level_names_the_possible_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "instructions", lambda: "avx2 fma")
    monkeypatch.setattr(build.platform, "machine", lambda: "x86_64")
    monkeypatch.delenv("ATEN_CPU_CAPABILITY", raising=False)
    for wrong, hint in (("avx3", "Did you mean 'avx2'"), ("vnni", "Valid: off, scalar, avx2")):
        monkeypatch.setenv(VARIABLE, wrong)
        with pytest.raises(InputError, match=f"on this processor, {VARIABLE} = '{wrong}'.*{hint}"):
            level()


LOADS = """
import torch
import addnorm.kernels.row_products
from addnorm.kernels.build import load_operator
load_operator("row_product")
y = torch.ops.addnorm.row_product(torch.ones(1, 3), [torch.ones(2, 3)], None)
assert y.tolist() == [[3, 3]]
"""


@pytest.mark.slow
def test_two_processes_at_once_both_succeed(tmp_path: Path) -> None:
    environment = os.environ | {"ADDNORM_CACHE": str(tmp_path)}
    starts = [subprocess.Popen([sys.executable, "-c", LOADS], env=environment) for _ in range(3)]
    assert [start.wait() for start in starts] == [0, 0, 0]
    [library] = tmp_path.iterdir()
    assert library.suffix == ".so"


def test_the_widest_level_is_last() -> None:
    sizes = [len(each.needs) for name, each in LEVELS.items() if name != "neon"]
    assert sizes == sorted(sizes)


TESTS = [
    *(str(each) for each in sorted(Path(__file__).parent.glob("test_[!b]*.py"))),
    str(Path(__file__).parents[1] / "nn" / "attention" / "test_cached_attention.py"),
]
"""The tests of operators that a process may run with another build: one is loaded once."""

RUNS = """
import sys
import pytest
from addnorm.kernels import build
build.FLAGS += tuple(sys.argv[1].split())
sys.exit(pytest.main([*sys.argv[2:], "-q", "-p", "no:cacheprovider", "-k", "not arm"]))
"""


def run_tests(flags: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", RUNS, flags, *TESTS],
        capture_output=True,
        text=True,
        env=os.environ | environment,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("chosen", levels()[:-1])
def test_every_path_of_the_processor(chosen: str) -> None:
    done = run_tests("", {VARIABLE: chosen})
    assert done.returncode == 0, done.stdout[-3000:]


@pytest.mark.slow
@pytest.mark.parametrize("chosen", levels())
def test_sanitizers_find_nothing(chosen: str, tmp_path: Path) -> None:
    """No read or write beyond the memory of a tensor, and nothing that C++ leaves undefined."""
    libraries = [
        subprocess.run(["g++", f"-print-file-name={name}"], capture_output=True, text=True).stdout
        for name in ("libasan.so", "libstdc++.so")  # the latter for exceptions
    ]
    if not all(Path(library.strip()).is_absolute() for library in libraries):
        pytest.skip("g++ has no address sanitizer here")
    environment = {
        VARIABLE: chosen,
        "ADDNORM_CACHE": str(tmp_path),
        "LD_PRELOAD": " ".join(library.strip() for library in libraries),
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "halt_on_error=1",
    }
    done = run_tests("-O1 -fsanitize=address,undefined -fno-sanitize-recover -g", environment)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
