"""Compiled code is kept for one processor, its limits and one version of torch."""

import ast
import os
import subprocess
import sys
from collections.abc import Callable
from errno import ENOSPC
from functools import partial
from pathlib import Path

import pytest

import addnorm
from addnorm import compiler, machine
from addnorm.compiler import (
    CACHES,
    CompilerError,
    compiler_errors,
    separate_caches,
)
from addnorm.errors import InputError

PACKAGE = Path(addnorm.__file__).parent
SLOW = pytest.mark.slow

COMPILES = """
import sys
import torch
from addnorm import compiler
torch.manual_seed(0)
table, norm = torch.nn.Embedding(64, 40), torch.nn.LayerNorm(40)
function = lambda ids: norm(table(ids)).square().sum(-1)
ids = torch.randint(0, 64, (8, 33))
compiled = compiler.compile(function, dynamic=True)(ids)
compiled.sum().backward()
print(float((compiled - function(ids)).abs().max()))
"""


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*CACHES, *machine.LIMITS):
        monkeypatch.delenv(name, raising=False)


def chosen() -> Path:
    separate_caches()
    return Path(os.environ[CACHES[0]])


@pytest.mark.parametrize("name", machine.LIMITS)
def test_each_limit_has_a_folder(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = chosen()
    assert chosen() == before
    monkeypatch.setenv(name, "avx2")
    assert chosen() != before
    assert chosen().parent == before.parent


@pytest.mark.parametrize("fact", ["processor", "instructions", "version"])
def test_each_processor_and_version_has_a_folder(
    fact: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = chosen()
    monkeypatch.setattr(compiler, fact, lambda *_: "another")
    assert chosen() != before


def test_folders_that_a_user_chose_hold_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in CACHES:
        monkeypatch.setenv(name, str(tmp_path / name))
    separate_caches()
    assert [Path(os.environ[name]).parent for name in CACHES] == [tmp_path / n for n in CACHES]
    assert len({Path(os.environ[name]).name for name in CACHES}) == 1


def test_by_default_the_folder_is_in_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    assert chosen().parent == Path(default_cache_dir())
    assert CACHES[1] not in os.environ  # Triton's is in it


def test_separating_caches_imports_no_torch() -> None:
    """A peer of a benchmark would share its threads with torch's."""
    words = "import sys; from addnorm.compiler import separate_caches as f; f(); "
    words += "sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", words], check=False).returncode == 0


def compilers(tree: ast.AST) -> list[str]:
    """What compiles with torch in a file, or touches its compiler."""
    found: list[str] = []
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(ast.Name("torch"), "compile" | "_inductor" as name):
                found.append(name)
            case ast.Import(names):
                found += [one.name for one in names if "_inductor" in one.name]
            case ast.ImportFrom(module=str(module), names=names):
                found += [module] if "_inductor" in module else []
                found += [one.name for one in names if (module, one.name) == ("torch", "compile")]
            case _:
                pass
    return found


def test_only_one_file_compiles() -> None:
    there = {
        str(file.relative_to(PACKAGE)): found
        for file in sorted(PACKAGE.rglob("*.py"))
        if (found := compilers(ast.parse(file.read_text("utf-8"))))
    }
    assert [*there] == ["compiler.py"]


@pytest.mark.parametrize(
    "text",
    [
        "f = torch.compile(g)",
        "@torch.compile\ndef f(): pass",
        "from torch import compile",
        "from torch._inductor import aoti_compile_and_package",
        "import torch._inductor.codecache",
        "torch._inductor.aot_compile(g)",
    ],
)
def test_other_ways_to_compile_are_seen(text: str) -> None:
    assert compilers(ast.parse(text))


def compiled_under(limit: str | None, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {CACHES[0]: str(folder)}
    environment |= {} if limit is None else {"ATEN_CPU_CAPABILITY": limit}
    return subprocess.run(
        [sys.executable, "-c", COMPILES],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("limits", [(None, "avx2"), ("avx2", None)])
def test_code_for_other_instructions_is_not_found_again(
    limits: tuple[str | None, str | None], tmp_path: Path
) -> None:
    """By itself torch is off by 3e11 in one order, and frees the same memory twice in the other."""
    for limit in (*limits, limits[0]):
        done = compiled_under(limit, tmp_path)
        assert done.returncode == 0, done.stderr
        assert float(done.stdout) < 1e-4


def compiler_error(command: list[str], output: str) -> Exception:
    from torch._inductor.exc import CppCompileError  # which takes seconds to import

    return CppCompileError(command, output)


def missing() -> Exception:
    from torch._inductor.exc import InvalidCxxCompiler

    return InvalidCxxCompiler()


def wrapped(error: Exception) -> Exception:
    from torch._inductor.exc import InductorError

    return InductorError(error, None)


@pytest.mark.long
@pytest.mark.parametrize(
    ("error", "message"),
    [
        (partial(compiler_error, ["g++"], "note\nx.cpp:1: fatal error: omp.h"), "g++: x.cpp:1: f"),
        (partial(compiler_error, ["/bin/false"], ""), "compiler fails: /bin/false: no output"),
        (missing, "the C++ compiler mine does not start"),
        (partial(subprocess.CalledProcessError, 1, ["gcc"], b"error: no\n"), "fails: gcc: error"),
        (partial(RuntimeError, "Failed to find C compiler. Please\nset CC"), "need: install gcc"),
        (partial(OSError, ENOSPC, "No space left", "/tmp/x"), "written: /tmp/x: No space left"),
    ],
)
def test_what_fails_is_one_message(
    error: Callable[[], Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "mine")
    for raised in (error(), wrapped(error())):
        with pytest.raises(CompilerError) as caught, compiler_errors(": do this"):
            raise raised
        text = str(caught.value)
        assert message in text
        assert text.endswith(": do this")
        assert "\n" not in text


@pytest.mark.long
@pytest.mark.parametrize("error", [ValueError("x"), RuntimeError("x"), InputError("x")])
def test_other_errors_stay_as_they_are(error: Exception) -> None:
    for raised in (error, wrapped(error)):
        with pytest.raises(type(raised)) as caught, compiler_errors():
            raise raised
        assert caught.value is raised


def broken(folder: Path) -> dict[str, str]:
    """An environment with a compiler that has no headers, and without compiled code on disk."""
    compiler = folder / "g++"
    compiler.write_text(
        '#!/bin/sh\ncase "$*" in *.cpp*) echo "fatal error: omp.h: not there" >&2; exit 1;; esac\n'
        'exec g++ "$@"\n'
    )
    compiler.chmod(0o755)
    caches = {name: str(folder / name) for name in ("ADDNORM_CACHE", CACHES[0])}
    return os.environ | caches | {"CXX": str(compiler), "PYTHONPATH": ":".join(sys.path)}


@pytest.mark.parametrize(
    "words",
    [
        pytest.param("generate RUN --prompt a --compile", marks=pytest.mark.long),
        pytest.param("train RUN/../language.toml --out OUT --train.compile true", marks=SLOW),
        pytest.param("check --only decoder/rotary/* --sample 1 --compile 1", marks=SLOW),
        pytest.param("serve RUN --compile", marks=SLOW),
    ],
)
def test_commands_name_the_error_of_a_compiler(
    words: str, run_of: Callable[[str], Path], tmp_path: Path
) -> None:
    places = {"RUN": str(run_of("language")), "OUT": str(tmp_path / "run")}
    for name, place in places.items():
        words = words.replace(name, place)
    done = subprocess.run(
        [sys.executable, "-m", "addnorm", *words.split()],
        capture_output=True,
        text=True,
        env=broken(tmp_path),
        check=False,
    )
    assert done.returncode == 2, done.stderr
    *_, last = done.stderr.splitlines()
    assert last.startswith("addnorm: the C++ compiler fails: ")
    assert last.endswith("fatal error: omp.h: not there: mend that, or run without compiling")
    assert "Traceback" not in done.stderr
