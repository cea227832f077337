"""Calls every public function and method with wrong values, and prints what is no `InputError`."""

import inspect
import math
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, get_args, get_type_hints

import addnorm as an
from addnorm.data import Corpus
from addnorm.data.tokenizing.grammar_forms import grammar_of_regex
from addnorm.quantize import Int8Config
from addnorm.runs import rewriting
from addnorm.tasks import QuestionAnswer

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.runs.every_kind import write_kind


class Thing:
    """An object of an unknown class."""


WRONG: list[Any] = [
    None, "", -1, 0, 1.5, math.nan, math.inf, 2**63, -(2**63), [], (), "no/such/file", "x", {},
    {"a": 1}, True, False, b"a", Thing(), [None], [1], ["a", 1], [("a",)], [("a", "b"), "a"], {"a"},
    [[]], [{}], [b"a"], "\ud800", "a\0b",
]  # fmt: skip

NEVER: list[Any] = [1.5, math.nan, 2**63, b"a", WRONG[18], {"a"}, [b"a"]]
"""Values that no argument may have, but for the numbers that are named."""

NUMBERS = {
    *("temperature", "length_penalty", "lr", "threshold", "top_p", "min_p", "clip", "r_drop"),
    "logit_adjustment",
}
"""Arguments for which 1.5 may be right."""

OFTEN_GIVEN = {"data", "tokenizer", "folder", "evaluation", "steps", "lr", "seed", "start"}
"""Arguments of `train` that are given every wrong value; the others, what none may have."""

SILENT: dict[str, Any] = {"progress": False, "tokenizer": "char", "steps": 1}
ATTENTION = an.AttentionConfig(n_heads=2)
SIZES: dict[str, Any] = {"d_model": 8, "n_layers": 1, "attention": ATTENTION}
LABELLED = an.labelled([("a b", "x"), ("b c", "y")] * 4)


def encoder(head: Any, data: Corpus) -> an.Run:
    return an.train(an.EncoderConfig(**SIZES, head=head), data, **SILENT)


RUNS: dict[str, Callable[[], an.Run]] = {
    "language": lambda: an.train(an.DecoderConfig(**SIZES), an.text(["to be"] * 8), **SILENT),
    "translation": lambda: an.train(
        an.EncoderDecoderConfig(**SIZES), an.pairs([("a b", "b a")] * 4), **SILENT
    ),
    "classification": lambda: encoder(an.ClassificationHeadConfig(), LABELLED),
    "tagging": lambda: encoder(an.TaggingHeadConfig(), an.tagged([("a b", "X O")] * 4)),
    "masked": lambda: encoder(an.TokenHeadConfig(), an.text(["to be or not"] * 8)),
    "span": lambda: encoder(
        an.SpanHeadConfig(), Corpus([QuestionAnswer("Who?", "Ada did.", ("Ada",))] * 4)
    ),
}


def right(run: an.Run | None) -> dict[str, Callable[[], Any]]:
    """A right value of each argument that has no default."""
    folder = f"{tempfile.mkdtemp(dir='.')}/out"
    return {
        "texts": lambda: ["a b"],
        "grammar": lambda: grammar_of_regex("[a-z]+", "grammar"),
        "text": lambda: "a b",
        "files": list,
        "messages": lambda: [{"role": "user", "content": "a"}],
        "sentences": lambda: ["a b"],
        "history": lambda: "table.csv",
        "file": lambda: "table.csv",
        "rule": lambda: "entropy:0.3",
        "folder": lambda: folder if run is not None else "saved",
        "out": lambda: folder,
        "decoding": an.GreedyConfig,
        "train": lambda: [("a b", "x")] * 3,
        "config": lambda: an.EncoderConfig(**SIZES, head=an.ClassificationHeadConfig()),
        "data": lambda: LABELLED,
        "run": RUNS["language"],
        "options": lambda: rewriting.PruneOptions(heads=0.5),
        "scheme": Int8Config,
    }


def arguments_of(function: Callable[..., Any]) -> tuple[list[str], list[str]]:
    """The names of all arguments of a function, and of those that have no default."""
    names, needed = list[str](), list[str]()
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            names += [*get_type_hints(get_args(parameter.annotation)[0])]
        else:
            names.append(parameter.name)
            needed += [parameter.name] if parameter.default is parameter.empty else []
    return names, needed


def tried(function: Callable[..., Any], values: dict[str, Any]) -> str:
    """What a call did: nothing, or what is wrong about it."""
    try:
        result = function(**values)
        if isinstance(result, Iterator):
            [*islice(result, 3)]
    except an.InputError as error:
        return "" if str(error).strip() else "an empty message"
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {error} ({Path(place.filename).name}:{place.lineno})"
    return "accepted"


def report(function: Callable[..., Any], of: an.Run | None, /, **always: Any) -> None:
    """Print every wrong value that a function accepts, or meets with another exception."""
    names, needed = arguments_of(function)
    for name in names:
        if name in always:
            continue
        for wrong in WRONG:
            good = right(of)
            values = {**always, **{n: good[n]() for n in needed if n not in (name, *always)}}
            result = tried(function, {**values, name: wrong})
            may_be = (name in NUMBERS and isinstance(wrong, float | int)) or name == "seed"
            if result == "accepted" and (may_be or not any(wrong is x for x in NEVER)):
                continue
            if result:
                print(f"{function.__qualname__}({name}={wrong!r}): {result}")


LONG = {"generate", "write", "stream", "translate", "chat"}
"""Methods that would write for long."""

NOT_CALLED = {"open", "of", "to", "written_to", "compiled"}


def run_of(kind: str) -> an.Run:
    """A run of a kind: trained here, or written untrained with the data that it names."""
    if kind in RUNS:
        return RUNS[kind]()
    return write_kind(Path(tempfile.mkdtemp(dir=".")).resolve(), kind)


def methods(kind: str) -> None:
    run = run_of(kind)
    for name in dir(an.Run):
        member = inspect.getattr_static(an.Run, name)
        if name.startswith("_") or name in NOT_CALLED or not inspect.isfunction(member):
            continue
        short = {"max_new_tokens": 2} if name in LONG else {}
        report(getattr(run, name), run, **short)


def functions() -> None:
    run = RUNS["language"]()
    run.save("saved")
    for constructor in (an.text, an.pairs, an.labelled, an.tagged, an.table):
        report(constructor, None)
    for function in (an.load, an.Run.open, run.to):
        report(function, None)
    for rewrite in (rewriting.swap_run, rewriting.prune_run, rewriting.quantize_run):
        report(rewrite, run, run=run)


def settings() -> None:
    """`train` and `check`, whose right values take a while."""
    config = {"config": an.EncoderConfig(**SIZES, head=an.ClassificationHeadConfig())}
    for name in arguments_of(an.train)[0]:
        for wrong in WRONG if name in OFTEN_GIVEN else NEVER:
            values = {**SILENT, **config, "data": LABELLED, name: wrong}
            result = tried(an.train, values)
            fits = name in NUMBERS or (name == "seed" and isinstance(wrong, int))
            if result and not (result == "accepted" and (fits or wrong not in (*NEVER, True))):
                print(f"train({name}={wrong!r}): {result}")
    for name in ("only", "sample", "seed", "jobs"):
        for wrong in NEVER:
            result = tried(an.check, {"only": "norm rms", "sample": 1, name: wrong})
            if result and not (name == "seed" and isinstance(wrong, int)):
                print(f"check({name}={wrong!r}): {result}")


SEVERAL = {"functions": functions, "settings": settings}

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    Path("table.csv").write_text("a,b\n1,2\n", encoding="utf-8")
    for chosen in sys.argv[1:]:
        SEVERAL[chosen]() if chosen in SEVERAL else methods(chosen)
