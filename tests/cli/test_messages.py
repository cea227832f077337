"""Messages of all commands: fast, with the nearest value, in terms of the options."""

import ast
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from tests.cli.test_main import SURFACE, command_called

import addnorm as package
from addnorm import quantize
from addnorm.cli import messages
from addnorm.cli.main import app, status
from addnorm.cli.messages import options_of, takes_fields
from addnorm.errors import InputError
from addnorm.runs import rewriting
from addnorm.runs.run import Run

Command = Callable[..., tuple[int, str, str]]
SOURCES = Path(package.__file__).parent

# A wrong name is told without waiting for torch.

WRONG = """
import json, sys
from addnorm.cli.main import status
for words in json.loads(sys.stdin.read()):
    print("$", *words, file=sys.stderr)
    code = status(words)
    assert code == 2, (words, code)
    assert not {"torch", "numpy", "asyncio"} & sys.modules.keys(), words
"""

PLACES: dict[str, list[str]] = {
    "train": ["gone.toml"],
    "train --resume": ["gone"],
    "evaluate": ["gone"],
    "generate": ["gone"],
    "forecast": ["gone", "history.csv"],
    "classify": ["gone"],
    "fill": ["gone"],
    "embed": ["gone"],
    "info": ["gone"],
    "info ": ["gone.toml"],
    "plot": ["gone"],
    "compare": ["gone", "away"],
    "ablate": ["gone.toml"],
    "look": ["gone", "a text"],
    "export": ["gone", "out"],
    "swap": ["gone", "--out", "out", "--set", "norm=rmsnorm"],
    "prune": ["gone", "--out", "out", "--heads", "0.5"],
    "quantize": ["gone", "--out", "out"],
    "merge": ["gone", "--out", "out"],
    "distill": ["gone", "gone.toml"],
}
"""Commands that name a folder or a recipe, and words with one that is not there."""


def wrong_words() -> Iterator[list[str]]:
    """Every command with an option that it has not, and with a folder that is not there."""
    yield ["trian"]
    yield ["lab", "rum"]
    yield ["help", "trian"]
    yield ["bench", "decod"]
    yield ["lab", "run", "wamup"]
    yield ["lab", "run", "all", "wamup"]
    yield ["lab", "speedrun", "digit", "--data.root", "."]
    yield ["parts", "nroms"]
    yield ["demo", "--to", "klingon"]
    yield ["check", "--part", "Thing"]
    yield ["check", "--part", "gone:Thing"]
    yield ["check", "--jobs", "999999"]
    for name, words in PLACES.items():
        yield [*name.split(), *words]
    for name in SURFACE:
        yield [*name.split(), *PLACES.get(name, []), "--no-such-option"]
    for name, options in SURFACE.items():
        if "--import" in options:
            yield [*name.split(), *PLACES.get(name, []), "--import", "gone.py"]
    for name in ("train", "evaluate", "ablate", "distill", "swap", "prune", "quantize"):
        yield [*name.split(), *PLACES[name], "--train.no_such_field", "3"]


def test_a_wrong_name_needs_no_torch(tmp_path: Path) -> None:
    words = [*wrong_words()]
    said = subprocess.run(
        [sys.executable, "-c", WRONG],
        input=json.dumps(words),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 0, said.stderr[-1500:]
    assert said.stderr.count("addnorm: ") == len(words)


# Every option of every command: what is no value of it is one message with its name.


def options() -> Iterator[tuple[str, str, Any]]:
    """Every option: its command, its name, and its argument."""
    for name in SURFACE:
        for argument in command_called(name).assemble_argument_collection():
            for option in argument.names:
                if option.startswith("--") and argument.parse:
                    yield name, option, argument


def needed(name: str, but: str) -> list[str]:
    """Words for what a command needs besides an option."""
    words: list[str] = []
    for argument in command_called(name).assemble_argument_collection():
        if argument.required and but not in argument.names:
            option = next(one for one in argument.names if one.startswith("--"))
            words += [option, "1" if argument.hint is int else "x"]
    return words


CHOICES = [(n, o, v) for n, o, a in options() if (v := [*messages.literals(a.hint)])]


@pytest.mark.parametrize(("name", "option", "valid"), CHOICES)
def test_a_choice_names_its_option_and_the_nearest_value(
    name: str, option: str, valid: list[str], addnorm: Command
) -> None:
    for word in valid:
        code, _, err = addnorm(*name.split(), *needed(name, option), option, f"{word}x")
        start = f"addnorm: {option} {word}x: "
        assert (code, err.startswith(start)) == (2, True), err
        assert err.endswith(f"Valid: {', '.join(valid)}.\n")
        assert err.index("Did you mean") < err.index("Valid:")
    _, _, err = addnorm(*name.split(), *needed(name, option), option, "qqqqqqq")
    assert err == f"addnorm: {option} qqqqqqq: no such choice. Valid: {', '.join(valid)}.\n"


@pytest.mark.parametrize(
    ("name", "option", "other", "meant"),
    [
        ("export", "--to", "pytorch", "hf"),
        ("export", "--to", "ct2", "ctranslate2"),
        ("export", "--dtype", "half", "float16"),
        ("embed", "--pooling", "max", "mean"),
        ("embed", "--pooling", "cls", "first"),
        ("quantize", "--range", "max", "minmax"),
        ("quantize", "--to", "4bit", "int4"),
        ("evaluate", "--split", "dev", "valid"),
        ("generate", "--errors", "ignore", "skip"),
        ("generate", "--dtype", "bf16", "bfloat16"),
        ("ablate", "--match", "params", "parameters"),
    ],
)
def test_the_word_of_another_library(
    name: str, option: str, other: str, meant: str, addnorm: Command
) -> None:
    _, _, err = addnorm(name, *needed(name, option), option, other)
    assert f"Did you mean {meant!r}?" in err


def numeric(hint: Any, *kinds: type) -> bool:
    """Whether an option takes numbers of these kinds alone, and no other text."""
    inner = get_args(hint)
    return hint in kinds or (str not in inner and any(numeric(one, *kinds) for one in inner))


NUMBERS = [(n, o, numeric(a.hint, int)) for n, o, a in options() if numeric(a.hint, int, float)]


@pytest.mark.parametrize(("name", "option", "whole"), NUMBERS)
def test_a_word_in_place_of_a_number_is_named(
    name: str, option: str, whole: bool, addnorm: Command
) -> None:
    large = {"1e30", str(10**30)} if whole else {"1e400"}
    for word in ("x", "", "nan", "inf", "-inf", *large):
        code, out, err = addnorm(*name.split(), *needed(name, option), option, word)
        assert (code, out) == (2, ""), (word, err)
        given = {"": "''", "1e400": ""}.get(word, word)
        assert err.startswith(f"addnorm: {option} {given}"), err
        assert err.count("\n") == 1


# Messages of the library have no options: Python has none.


COMMAND = re.compile(r"`(addnorm|hf|pip) [^`]*`")


def texts_in(tree: ast.AST) -> Iterator[str]:
    """The strings of a module without its docstrings, `{}` in place of values."""
    documented = {
        id(body[0].value)
        for node in ast.walk(tree)
        if isinstance(body := getattr(node, "body", None), list)
        and body
        and isinstance(body[0], ast.Expr)
    }
    parts: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts |= {id(value) for value in node.values}
            yield "".join(v.value if isinstance(v, ast.Constant) else "{}" for v in node.values)
        elif isinstance(node, ast.Expr):
            documented.add(id(node.value))  # the sentence below a field
        elif isinstance(node, ast.Constant) and id(node) not in documented | parts:
            yield str(node.value)


ARGUMENTS_OF_PROCESSES = {
    *("lab/speedrun.py", "lab/markup.py", "demo/__init__.py", "bench/run.py", "runs/options.py"),
    "bench/over_http.py",
}
"""Files that declare options, start or print commands, or have style sheets."""


OF_COMMANDS = {"--import {}", "--processes {}", "addnorm train --resume"}
"""Parts of whole commands, which messages have between backquotes."""


def test_messages_below_the_command_line_name_no_options() -> None:
    wrong = [
        f"{file.relative_to(SOURCES)}: {text}"
        for file in sorted(SOURCES.rglob("*.py"))
        if file.relative_to(SOURCES).parts[0] != "cli"
        and str(file.relative_to(SOURCES)) not in ARGUMENTS_OF_PROCESSES
        for text in texts_in(ast.parse(file.read_text("utf-8")))
        if re.search(r"(?<![\w`!-])--[a-z{]", COMMAND.sub("", text)) and text not in OF_COMMANDS
    ]
    assert wrong == []


WITHOUT_A_CALL = ("lab", "train", "tokenize", "calibrate", "bench", "…")
"""The commands that messages of the library may advise: no call of Python does the same."""


def test_messages_below_the_command_line_name_calls_instead_of_commands() -> None:
    advised = {
        command
        for file in sorted(SOURCES.rglob("*.py"))
        if file.relative_to(SOURCES).parts[0] not in ("cli", "demo", "bench")
        for text in texts_in(ast.parse(file.read_text("utf-8")))
        for command in re.findall(r"`addnorm (\S+?)[ `]", text)
    }
    assert advised <= {*WITHOUT_A_CALL}


def test_calls_that_messages_name_exist() -> None:
    for call in messages.COMMANDS:
        if (match := re.fullmatch(r"run\.(\w+)\((\w+)\)", call)) is not None:
            name, argument = match.groups()
            assert argument in (*inspect.signature(getattr(Run, name)).parameters, "rows")
        elif not call.startswith("compare("):
            assert eval(call, {**vars(rewriting), **vars(quantize)})


@pytest.mark.parametrize(
    ("message", "command", "said"),
    [
        ("`recover = -1`: must be at least 0", "swap", "--recover -1: must be at least 0"),
        ("give `sets` or `layers`", "swap", "give --set or --layers"),
        ("give `feedforward`", "prune", "give --feed-forward"),
        ("`train.lr`: train.lr = 'x'", "train", "--train.lr: train.lr = 'x'"),
        ("`train.lr` and `feedforward`", "generate", "`train.lr` and `feedforward`"),
        ("use `addnorm generate`", "classify", "use `addnorm generate`"),
        ("use `run.tag(sentences)`: 1", "generate", "use `addnorm classify`: 1"),
        ("`exit`: none", "evaluate", "--exit: none"),
        ("`device = 'gpu'` is not available", "look", "--device gpu is not available"),
    ],
)
def test_arguments_of_the_library_become_options(message: str, command: str, said: str) -> None:
    assert messages.in_options(message, app, [command]) == said
    assert messages.message_of(InputError(message), app, [command, "x"]) == said


def test_a_name_of_the_hub_is_not_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, addnorm: Command
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, folder in (("gpt2", "gpt2"), ("openai-community/gpt2", "gpt2")):
        for command in ("generate", "classify", "embed", "evaluate", "info", "merge --out o"):
            _, _, err = addnorm(*command.split(), name)
            assert f"`hf download {name} --local-dir {folder}` and give the folder {folder}" in err
            assert "Nothing is downloaded" in err
    (tmp_path / "runs").mkdir()
    for name in ("runs/gone", "/gone", "./a/b/c", "../gone", "~/gone"):
        _, _, err = addnorm("generate", name)
        assert err == f"addnorm: {Path(name)}: no such folder.\n"
    assert status(["generate", "none"]) == 2


# Numbers out of range: the option, the value, and what would be right.

OUT_OF_RANGE = [
    ("language", "generate RUN --prompt x --temperature -1", "--temperature -1"),
    ("language", "generate RUN --prompt x --temperature 1e9", "--temperature 1e9"),
    ("language", "generate RUN --prompt x --top-k -5", "--top-k -5"),
    ("language", "generate RUN --prompt x --top-p 0", "--top-p 0"),
    ("language", "generate RUN --prompt x --min-p 2", "--min-p 2"),
    ("language", "generate RUN --prompt x --beams -1", "--beams -1"),
    ("language", "generate RUN --prompt x --beams 5000", "--beams 5000"),
    ("language", "generate RUN --prompt x --n-best -1", "--n-best -1"),
    ("language", "generate RUN --prompt x --length-penalty 99", "--length-penalty 99"),
    ("language", "generate RUN --prompt x --no-repeat-ngram -2", "--no-repeat-ngram -2"),
    ("language", "generate RUN --prompt x --seed -1", "--seed -1"),
    ("language", "generate RUN --prompt x --max-new-tokens 0", "--max-new-tokens 0"),
    ("language", "generate RUN --prompt x --max-new-tokens -4", "--max-new-tokens -4"),
    ("classification", "classify RUN TEXT --threshold -1", "--threshold -1"),
    ("classification", "classify RUN TEXT --threshold 1e30", "--threshold 1e30"),
    ("language", "swap RUN --out o --set norm=rmsnorm --recover -1", "--recover -1"),
    ("language", "swap RUN --out o --layers 99", "--layers 99"),
    ("language", "prune RUN --out o --heads 2", "--heads 2"),
    ("language", "prune RUN --out o --feed-forward -1", "--feed-forward -1"),
    ("language", "prune RUN --out o --heads 0.5 --recover -1", "--recover -1"),
    ("language", "prune RUN --out o --heads 0.5 --calibrate 0", "--calibrate 0"),
    ("language", "quantize RUN --out o --smoothing 2", "--smoothing 2"),
    ("language", "quantize RUN --out o --static --calibrate 0", "--calibrate 0"),
    ("language", "quantize RUN --out o --keep-worst -1", "--keep-worst -1"),
    ("language", "distill RUN RECIPE --out o --temperature -1", "--temperature: train"),
    ("language", "distill RUN RECIPE --out o --weight 2", "--weight: train"),
    ("language", "check --sample -1", "--sample -1"),
    ("language", "check --jobs 0", "--jobs 0"),
    ("language", "check --compile -1", "--compile -1"),
    ("language", "bench decode --rounds 0", "--rounds 0"),
    ("language", "ablate RECIPE --vary train.lr=1,2 --seeds 0", "--seeds 0"),
    ("language", "ablate RECIPE --vary train.lr=1,2 --threads 0", "--threads 0"),
    ("language", "ablate RECIPE --vary train.lr=1,2 --processes -1", "--processes -1"),
    ("language", "ablate RECIPE --vary train.lr=1,2 --seeds 99999999999", "--seeds 99999999999"),
    ("language", "lab run all --processes 0", "--processes 0"),
    ("language", "lab speedrun digits-99 --data.root . --seeds 0", "--seeds 0"),
]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--temperature -1", "--temperature -1: must be greater than 0"),
        ("--temperature=-1", "--temperature -1: must be greater than 0"),
        ("--top-k None", "--top-k None: must be an integer"),
        ("--top-p none", "--top-p none: must be a number"),
        ("--dtype None", "--dtype None: no such choice. Valid: float32"),
        ("--n-best 9 --beams 2", "--n-best 9 needs as many --beams, not 2"),
        ("--beams 2 --top-k 3", "beam search does not sample: leave out --top-k, or --beams"),
        ("--forced-bos 9", "--forced-bos 9: only a translation has a first token to force"),
    ],
)
def test_a_value_is_named_as_it_was_given(
    words: str, said: str, run_of: Callable[[str], Path], addnorm: Command
) -> None:
    code, out, err = addnorm("generate", run_of("language"), "--prompt", "a", *words.split())
    assert (code, out) == (2, "")
    assert err.startswith(f"addnorm: {said}"), err


@pytest.mark.parametrize(("task", "words", "said"), OUT_OF_RANGE)
def test_a_number_out_of_range_is_named(
    task: str,
    words: str,
    said: str,
    run_of: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    addnorm: Command,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("a text\n")
    run = run_of(task)
    named = {"RUN": run, "RECIPE": run.parent / f"{task}.toml", "TEXT": "text.txt"}
    code, out, err = addnorm(*(named.get(word, word) for word in words.split()))
    assert (code, out) == (2, ""), err
    assert err.startswith(f"addnorm: {said}"), err
    assert err.count("\n") == 1
    assert "Input should" not in err


@pytest.mark.long
@pytest.mark.parametrize(
    "words",
    [
        ["quantize", "--to", "int8", "--dynamic"],
        ["prune", "--heads", "0.5"],
        ["swap", "--set", "norm=rmsnorm"],
    ],
)
def test_the_split_that_was_scored_is_named(
    words: list[str], run_of: Callable[[str], Path], tmp_path: Path, addnorm: Command
) -> None:
    command, *options = words
    for split in ("valid", "test"):
        out = tmp_path / split
        code, said, err = addnorm(
            command, run_of("language"), "--out", out, *options, "--split", split
        )
        assert code == 0, err
        assert f"scores of the {split} split:" in said + err


def test_options_by_the_names_of_parameters() -> None:
    options = options_of(app["evaluate"])
    assert options["earlyexit"] == options["exit"] == "--exit"
    assert options["imports"] == "--import"
    assert options_of(app["prune"])["feedforward"] == "--feed-forward"
    assert takes_fields(app["evaluate"])
    assert not takes_fields(app["generate"])
