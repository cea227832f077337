"""Do the fast tests see a small mistake? Mutants of the mathematics, one at a time, in a copy.

    make mutants                                            a fixed random 200, as far as not done
    .venv/bin/python benchmarks/mutants.py --changed main   those in lines that differ from `main`
    .venv/bin/python benchmarks/mutants.py --again --wide   survivors without a reason, all tests

The mutants are mutmut's. Running them is not left to it: it puts a dispatcher in the place of every
function, which shape checks, `torch.compile` and `torch.export` then see instead of the function,
and it knows no fixed sample. Here a mutant is a file of a copy of the tree, and a forked process
runs first the tests that mirror the file and then, if they pass, those of the modules that use it.

A mutant is known by its place (file and function) and by what becomes of what, and the sample is
the first of all by a hash of that: an edit elsewhere changes neither. Results go to
`benchmarks/results/mutants.json` after every mutant, so a stopped run can be resumed. Those
that no test can kill are in `benchmarks/equivalent_mutants.toml`, each with the reason.
"""

import argparse
import ast
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import libcst as cst
import torch
from mutmut.mutation.file_mutation import Mutation, create_mutations, deep_replace

ROOT = Path(__file__).resolve().parent.parent
SOURCE = Path("src/addnorm")
SCOPE = ("nn", "tuning", "generate", "quantize", "training/loss.py", "training/optim.py")
MODELS = (
    "tests/models/test_encoder.py",
    "tests/models/test_encoder_decoder.py",
    "tests/checking/test_compare.py",
)
WIDER = {
    "nn/recurrent.py": (
        "tests/nn/test_blocks.py",
        "tests/nn/test_canon.py",
        "tests/nn/test_convolution.py",
        "tests/nn/test_layer_convolution.py",
        *MODELS,
    ),
    "nn/residuals.py": ("tests/nn/test_no_sublayer.py", "tests/test_parts.py", *MODELS),
    "nn/embed.py": ("tests/nn/test_per_layer_embedding.py", "tests/test_parts.py", *MODELS),
    "nn/blocks.py": (
        "tests/nn/test_canon.py",
        "tests/nn/test_layer_convolution.py",
        "tests/test_parts.py",
        *MODELS,
    ),
    "nn/attention/multihead.py": (
        "tests/generate/test_early_exit.py",
        "tests/nn/attention/test_core.py",
        "tests/nn/test_splits.py",
        *MODELS,
    ),
    "nn/attention": ("tests/nn/test_init.py", "tests/nn/attention/test_multihead.py", *MODELS),
    "nn/positions": (
        "tests/nn/attention/test_multihead.py",
        "tests/nn/attention/test_flex.py",
        "tests/nn/test_splits.py",
        *MODELS,
    ),
    "nn": ("tests/test_parts.py", *MODELS),
    "tuning": ("tests/runs/files/test_training_machine.py",),
    "generate": ("tests/generate",),
    "quantize": ("tests/runs/inference/test_text.py",),
    "training": ("tests/training/test_trainer.py", "tests/training/test_validation.py"),
}
"""The tests of the modules that use a package, which run if the tests of the file pass."""

WIDEST = {
    "nn": ("tests/nn", "tests/models", "tests/quantize", "tests/generate", "tests/checking"),
    "generate": ("tests/runs", "tests/cli", "tests/checking"),
    "training": ("tests/training", "tests/runs"),
}
"""With `--wide` also these, which take minutes."""

LIMIT = 900
"""Seconds for one set of tests."""

RESULTS = ROOT / "benchmarks/results/mutants.json"
EQUIVALENT = ROOT / "benchmarks/equivalent_mutants.toml"
COPIED = ("src", "tests", "benchmarks", "docs", "recipes", "pyproject.toml", "README.md")


@dataclass(frozen=True)
class Mutant:
    """One change of one file: what becomes of what."""

    id: str
    path: str
    place: str
    before: str
    after: str
    module: cst.Module
    mutation: Mutation

    @cached_property
    def code(self) -> str:
        """The file with the change in it."""
        old, new = self.mutation.original_node, self.mutation.mutated_node
        changed = deep_replace(self.module, old, new)
        assert isinstance(changed, cst.Module)
        return changed.code

    @cached_property
    def line(self) -> int:
        """The first line that differs; zero where none does."""
        pairs = zip(self.module.code.splitlines(), self.code.splitlines(), strict=False)
        return next((n for n, (a, b) in enumerate(pairs, 1) if a != b), 0)

    def is_fair(self) -> bool:
        """Whether it is code, another code, and not in a `raise`, whose words are for readers."""
        try:
            ast.parse(self.code)
        except SyntaxError:
            return False
        return self.line > 0 and self.line not in _raised(self.module.code)


def mutants(path: str, code: str) -> Iterator[Mutant]:
    """Every mutant of a file, but for types, docstrings and the words of messages."""
    module, mutations, _, _ = create_mutations(path, code)
    seen = Counter[str]()
    for mutation in filter(_counts, mutations):
        function = mutation.contained_by_top_level_function
        place = function.name.value if isinstance(function, cst.FunctionDef) else ""
        before, after = (
            " ".join(module.code_for_node(node).split())
            for node in (mutation.original_node, mutation.mutated_node)
        )
        key = f"{path} {place}: {before} -> {after}"
        seen[key] += 1
        name = hashlib.sha256(f"{key} {seen[key]}".encode()).hexdigest()[:12]
        yield Mutant(name, path, place, before, after, module, mutation)


def _counts(mutation: Mutation) -> bool:
    """Not a message, which has blanks; and outside of functions not an alias of a type."""
    node, inside = mutation.original_node, mutation.contained_by_top_level_function
    if isinstance(node, cst.SimpleString):
        return " " not in node.value
    if inside is None and isinstance(node, cst.Assign):
        target = node.targets[0].target
        return isinstance(target, cst.Name) and target.value.isupper()
    return True


@cache
def _raised(code: str) -> set[int]:
    """The lines of `raise` statements."""
    statements = (node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Raise))
    return {n for node in statements for n in range(node.lineno, (node.end_lineno or 0) + 1)}


def population(root: Path = ROOT) -> list[Mutant]:
    """All mutants of the scope, in the order in which a sample takes them."""
    every: list[Mutant] = []
    for entry in SCOPE:
        files = sorted((root / SOURCE / entry).rglob("*.py")) or [root / SOURCE / entry]
        for file in files:
            if file.name != "__init__.py":
                path = file.relative_to(root / SOURCE).as_posix()
                every += mutants(path, file.read_text(encoding="utf-8"))
    return sorted(every, key=lambda m: hashlib.sha256(f"addnorm {m.id}".encode()).digest())


def sample(n: int, revision: str | None = None) -> list[Mutant]:
    """The first `n` of all, or of those in lines that are new since a revision."""
    chosen = population()
    if revision is not None:
        lines = changed_lines(revision)
        chosen = [m for m in chosen if m.path in lines and m.line in lines[m.path]]
    print(f"{len(chosen)} mutants, of which the first {n}", file=sys.stderr, flush=True)
    return list(islice((m for m in chosen if m.is_fair()), n))


def changed_lines(revision: str) -> dict[str, set[int]]:
    """The lines of each file of ours that are new since a revision, the working tree included."""
    command = ["git", "diff", "-U0", "--no-color", revision, "--", str(SOURCE)]
    text = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    lines: dict[str, set[int]] = {}
    path = ""
    for row in text.splitlines():
        if row.startswith("+++ "):
            path = row.removeprefix(f"+++ b/{SOURCE}/")
        elif hunk := re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", row):
            first, n = int(hunk[1]), int(hunk[2] or 1)
            lines.setdefault(path, set()).update(range(first, first + n))
    return lines


def mirror(path: str) -> str:
    """The tests of a module of ours."""
    return (Path("tests") / Path(path).with_name(f"test_{Path(path).name}")).as_posix()


class Trial:
    """A copy of the tree in which one file at a time is another."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._clean = set[str]()
        for name in COPIED:
            if (ROOT / name).is_dir():
                skipped = shutil.ignore_patterns("__pycache__", "_build", "_pictures")
                shutil.copytree(ROOT / name, folder / name, ignore=skipped)
            else:
                shutil.copy(ROOT / name, folder / name)

    def result_of(self, mutant: Mutant, *, wide: bool = False) -> dict[str, Any]:
        """Whether tests fail with a mutant in its place, and the first that does."""
        start, result, by = time.perf_counter(), "survived", ""
        for tests in self.stages(mutant.path, wide=wide):
            with self.replaced(mutant.path, mutant.code):
                result, by = self.run(tests)
            if result != "survived":
                self.check_clean(by)
                break
        return {
            "path": mutant.path,
            "place": mutant.place,
            "line": mutant.line,
            "before": mutant.before,
            "after": mutant.after,
            "result": result,
            "by": by,
            "seconds": round(time.perf_counter() - start, 1),
        }

    def stages(self, path: str, *, wide: bool) -> Iterator[tuple[str, ...]]:
        """The tests of a file, of the modules that use it, and with `wide` of its package."""
        if (self.folder / mirror(path)).exists():
            yield (mirror(path),)
        yield next(tests for prefix, tests in WIDER.items() if path.startswith(prefix))
        if wide and (package := path.split("/")[0]) in WIDEST:
            yield WIDEST[package]

    def check_clean(self, by: str) -> None:
        """That the test passes without a mutant, once for each file of tests."""
        if "::" in by and (file := by.split("::")[0]) not in self._clean:
            result, _ = self.run((by,))
            if result != "survived":
                raise SystemExit(f"{by} fails without any mutant")
            self._clean.add(file)

    def replaced(self, path: str, code: str) -> "Replaced":
        """The file with other code, as long as the `with` lasts."""
        return Replaced(self.folder / SOURCE / path, code)

    def run(self, tests: tuple[str, ...]) -> tuple[str, str]:
        """`survived`, `killed` or `timeout`, and the first test that failed."""
        log = self.folder / "log.txt"
        child = os.fork()
        if child == 0:
            _be_pytest(self.folder, tests, log)
        end = time.perf_counter() + LIMIT
        try:
            while time.perf_counter() < end:
                done, status = os.waitpid(child, os.WNOHANG)
                if done:
                    child = 0
                    return _verdict(os.waitstatus_to_exitcode(status), log)
                time.sleep(0.05)
            return "timeout", " ".join(tests)
        finally:
            if child:
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)


class Replaced:
    """A file with other code, and afterwards as it was; nothing compiled of either stays."""

    def __init__(self, file: Path, code: str) -> None:
        self.file, self.code, self.old = file, code, file.read_text(encoding="utf-8")

    def __enter__(self) -> None:
        self._write(self.code)

    def __exit__(self, *_: object) -> None:
        self._write(self.old)

    def _write(self, code: str) -> None:
        self.file.write_text(code, encoding="utf-8")
        for compiled in (self.file.parent / "__pycache__").glob(f"{self.file.stem}.*"):
            compiled.unlink()


def _be_pytest(folder: Path, tests: tuple[str, ...], log: Path) -> None:
    """Run tests up to the first that fails, in the forked process; this never returns."""
    code = 70
    try:
        os.setpgid(0, 0)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored, where we are in nohup
        os.chdir(folder)
        with log.open("w") as out:
            os.dup2(out.fileno(), 1)
            os.dup2(out.fileno(), 2)
        os.environ["PYTHONPATH"] = str(folder / "src")
        sys.path[:0] = [str(folder / "src")]
        import pytest

        options = ["-x", "-q", "--tb=no", "-m", "not slow and not gpu", "-p", "no:cacheprovider"]
        code = int(pytest.main([*options, f"--basetemp={folder / 'tmp'}", *tests]))
        sys.stdout.flush()
    finally:
        os._exit(code)


def _verdict(code: int, log: Path) -> tuple[str, str]:
    """Return the result, and the first test that failed; exit code 0 means that all passed."""
    if code == 0:
        return "survived", ""
    text = log.read_text(encoding="utf-8", errors="replace")
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", text, re.MULTILINE)
    return "killed", failed[1] if failed else f"exit code {code}"


def equivalent() -> dict[str, str]:
    """The reasons of those that no test can kill, by their names."""
    if not EQUIVALENT.exists():
        return {}
    return tomllib.loads(EQUIVALENT.read_text(encoding="utf-8"))


def open_survivors(results: dict[str, dict[str, Any]]) -> set[str]:
    """The names of those that survived and have no reason to."""
    survived = {name for name, r in results.items() if r["result"] == "survived"}
    return survived - equivalent().keys()


def write(results: dict[str, dict[str, Any]], names: list[str], wanted: int) -> None:
    """The results of the sample so far, all or nothing."""
    done = [results[name] for name in names if name in results]
    killed = sum(r["result"] != "survived" for r in done)
    reasons = equivalent()
    summary = {
        "command": "make mutants",
        "sample": wanted,
        "done": len(done),
        "killed": killed,
        "survivors": {
            name: reasons.get(name, "no reason yet")
            for name in names
            if name in results and results[name]["result"] == "survived"
        },
        "mutants": {name: results[name] for name in names if name in results},
    }
    new = RESULTS.with_suffix(".tmp")
    new.write_text(json.dumps(summary, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    new.replace(RESULTS)


def show(result: dict[str, Any]) -> str:
    """Return a line about a mutant."""
    what = f"{result['before'][:60]}  ->  {result['after'][:60]}"
    return f"{result['result']:8} {result['path']}:{result['line']} {what} {result['by']}"


def arguments() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sample", type=int, default=200, help="how many (200)")
    parser.add_argument("--changed", metavar="REVISION", help="only in lines changed since then")
    parser.add_argument("--again", action="store_true", help="survivors without a reason once more")
    parser.add_argument("--wide", action="store_true", help="against all tests of the package")
    parser.add_argument("--fresh", action="store_true", help="forget the results so far")
    parser.add_argument("--list", action="store_true", help="say which, and run none")
    return parser.parse_args()


def main() -> int:
    """Run the rest of the sample; 1 where fewer than 95 in 100 are killed."""
    asked = arguments()
    chosen = sample(asked.sample, asked.changed)
    results: dict[str, dict[str, Any]] = {}
    if RESULTS.exists() and not (asked.fresh or asked.changed):
        results = json.loads(RESULTS.read_text(encoding="utf-8"))["mutants"]
    again = open_survivors(results) if asked.again else set[str]()
    names = [m.id for m in chosen]
    left = [m for m in chosen if m.id not in results or m.id in again]
    if asked.list:
        print("\n".join(f"{m.id} {m.path}:{m.line} {m.before}  ->  {m.after}" for m in left))
        return 0
    torch.set_num_threads(1)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the copy goes, the results stay
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        trial = Trial(Path(folder))
        for i, mutant in enumerate(left, len(chosen) - len(left) + 1):
            results[mutant.id] = trial.result_of(mutant, wide=asked.wide)
            print(f"{i}/{len(chosen)} {mutant.id} {show(results[mutant.id])}", flush=True)
            if not asked.changed:
                write(results, names, asked.sample)
    return report([results[name] for name in names], names)


def report(done: list[dict[str, Any]], names: list[str]) -> int:
    """Print the survivors and the share that was killed."""
    reasons = equivalent()
    for name, result in zip(names, done, strict=True):
        if result["result"] == "survived":
            print(f"{name} {show(result)}\n    {reasons.get(name, 'no reason yet')}")
    killed = sum(r["result"] != "survived" for r in done)
    print(f"{killed} of {len(done)} killed")
    return int(killed < 0.95 * len(done))


if __name__ == "__main__":
    sys.exit(main())
