"""The command line as a whole: its options, exit statuses and error messages."""

import gc
import importlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from cyclopts import App
from tests.commands import messages

from addnorm.cli import main, train
from addnorm.cli.main import app, at_least, check_number, lasting_imports, status
from addnorm.errors import InputError, Interrupted, NonFiniteError

RunOf = Callable[[str], Path]
Command = Callable[..., tuple[int, str, str]]

SURFACE = {
    "demo": {"--to", "--out"},
    "tokenize": {
        *("--out", "--tokenizer", "--workers", "--vocab-size", "--field", "--unit", "--dedup"),
        *("--valid-fraction", "--shard-tokens"),
        *("--near-threshold", "--shingle-words", "--permutations"),
    },
    "train": {"--recipe", "--out", "--resume", "--dry-run", "--import", "--processes",
        "--patience",
    },
    "plan": {
        "--recipe", "--cards", "--card", "--link", "--per-node", "--top", "--json", "--import",
    },
    "evaluate": {
        "--run", "--split", "--predictions", "--confusion", "--weights", "--exit", "--device",
        "--dtype", "--import", "--processes", "--parallel",
    },
    "generate": {
        "--run", "--prompt", "--chat", "--messages", "--beams", "--n-best", "--length-penalty",
        "--early-stopping", "--no-repeat-ngram", "--forced-bos", "--temperature", "--top-k",
        "--top-p", "--min-p", "--seed", "--max-new-tokens", "--stop", "--json", "--compile",
        "--weights", "--exit", "--speculate", "--encoding", "--errors", "--device", "--dtype",
        "--import", "--batch", "--out", "--exact", "--processes", "--language", "--task",
        "--timestamps", "--cache-dtype",
        "--subtitles", "--json-schema", "--regex", "--parallel",
    },
    "forecast": {
        "--run", "--history", "--horizon", "--until", "--truth", "--out", "--plot", "--device",
        "--dtype", "--import",
    },
    "classify": {
        "--run", "--pairs", "--threshold", "--json", "--encoding", "--errors", "--device",
        "--dtype", "--import",
        "--labels", "--hypothesis", "--aggregation",
    },
    "predict": {"--run", "--encoding", "--errors", "--device", "--dtype", "--import"},
    "fill": {
        "--run", "--text", "--top-k", "--json", "--encoding", "--errors", "--device", "--dtype",
        "--import",
    },
    "embed": {
        "--run", "--out", "--pooling", "--encoding", "--errors", "--device", "--dtype", "--import",
        "--prompt-name",
    },
    "calibrate": set(),
    "info": {"--what", "--machine", "--verify", "--import"},
    "plot": {"--out"},
    "compare": {"--out", "--import"},
    "ablate": {
        "--recipe", "--vary", "--out", "--seeds", "--metric", "--match", "--match-by", "--question",
        "--budget", "--halving", "--processes", "--threads", "--scheduler", "--dry-run", "--import",
    },
    "lab list": {"--out"},
    "lab run": {"--quick", "--full", "--night", "--out", "--processes", "--data.root"},
    "lab report": {"--out"},
    "lab speedrun": {"--board", "--recipe", "--seeds", "--out", "--data.root"},
    "look": {
        "--run", "--text", "--target", "--only", "--layers", "--heads", "--out", "--json",
        "--device", "--dtype", "--import",
    },
    "export": {"--run", "--out", "--to", "--family", "--dtype", "--import"},
    "swap": {
        "--run", "--out", "--set", "--layers", "--recover", "--distill", "--split", "--import",
    },
    "prune": {
        "--run", "--out", "--heads", "--feed-forward", "--layers", "--recover", "--calibrate",
        "--split", "--import",
    },
    "quantize": {
        "--run", "--out", "--to", "--weights-only", "--dynamic", "--static", "--range",
        "--smoothing", "--rounding", "--group-size", "--calibrate", "--keep", "--include",
        "--keep-worst", "--split", "--sweep", "--plot", "--import",
    },
    "merge": {"--run", "--out", "--import"},
    "distill": {
        "--teacher", "--recipe", "--temperature", "--weight", "--sequences", "--out", "--import",
    },
    "new": {"--family", "--file"},
    "parts": {"--json", "--import"},
    "schema": set(),
    "check": {
        "--all", "--sample", "--seed", "--only", "--compile", "--no-compile", "--jobs",
        "--part", "--definition", "--family", "--import",
    },
    "bench": {"--rounds", "--out", "--list"},
    "serve": {
        "--host", "--port", "--timeout", "--api-key-file", "--memory", "--chunk", "--max-queue",
        "--compile", "--exact", "--speculate", "--draft", "--weights", "--device", "--dtype",
        "--import",
    },
    "chat": {
        "--address", "--model", "--system", "--messages", "--temperature", "--max-new-tokens",
        "--api-key-file", "--device", "--dtype", "--import",
    },
}  # fmt: skip


def leaves(group: App, above: str = "") -> Iterator[str]:
    """Every command that does something, with the group that it belongs to: `lab run`."""
    for name in group:
        if not name.startswith("-"):
            inner = [*leaves(group[name], f"{above}{name} ")]
            yield from inner or [above + name]


def command_called(name: str) -> App:
    found = app
    for word in name.split():
        found = found[word]
    return found


def test_the_surface_is_frozen() -> None:
    """A change here is a change for everybody who uses the command."""
    found = {
        name: {
            option
            for argument in command_called(name).assemble_argument_collection()
            for option in argument.names
            if option.startswith("-")
        }
        for name in SURFACE
    }
    assert found == SURFACE
    assert {*leaves(app)} == {*SURFACE, "help"}


def test_the_list_of_commands_has_the_first_sentence_of_each(addnorm: Command) -> None:
    _, listed, _ = addnorm("--help")
    assert set(main.COMMANDS) == {name.split()[0] for name in SURFACE}
    for name in main.COMMANDS:
        written = app[name].help
        assert " ".join(written.split()[:4]).replace("`", "") in listed
        assert addnorm("help", name)[1] == addnorm(name, "--help")[1]
    assert addnorm("help")[1] == listed


def test_help_groups_the_commands_in_the_order_of_a_first_day(addnorm: Command) -> None:
    _, listed, _ = addnorm("--help")
    titles = [line.split()[1] for line in listed.splitlines() if line.startswith("╭")]
    assert titles == [*main.GROUPS, "Help"]
    words = [line.split()[1] for line in listed.splitlines() if line.startswith("│ ")]
    assert [word for word in words if word in main.COMMANDS] == [*main.COMMANDS]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_commands(shell: str) -> None:
    assert "evaluate" in app.generate_completion(shell=shell)


@pytest.mark.parametrize("name", ["", *SURFACE])
def test_help_says_what_the_options_do(name: str, addnorm: Command) -> None:
    code, out, _ = addnorm(*name.split(), "--help")
    assert code == 0
    for option in SURFACE.get(name, {one.split()[0] for one in SURFACE}):
        assert option.removeprefix("--") in out.lower()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["gen"], "no command 'gen'. Did you mean 'generate'?"),
        (["train"], "train needs a recipe, a TOML file"),
        (["train", "r.toml", "--lr", "1"], "Did you mean '--train.lr'?"),
        (
            ["train", "r.toml", "--train.lr", "1", "--train.lr=2"],
            "--train.lr is given twice: 1 and 2",
        ),
        (
            ["train", "r.toml", "--max_length", "4"],
            "such as --train.lr. Did you mean '--model.max_len'?",
        ),
        (["help", "trian"], "Did you mean 'train'?"),
        (["train", "none.toml"], "no such recipe"),
        (["train", "r.toml", "--dryrun"], "Did you mean '--dry-run'?"),
        (["generate", "none"], "none: no such folder. Nothing is downloaded: "),
        (["generate", "none", "--beems", "5"], "Did you mean '--beams'?"),
        (["generate", "none", "--beams", "five"], "--beams five: must be an integer"),
        (["generate", "none", "--max-new-tokens", "2.5"], "2.5: must be an integer"),
        (["fill", "none", "--top-k", "1.5"], "--top-k 1.5: must be an integer"),
        (["swap", "none", "--out", "x", "--layers", "0", "0.5"], "--layers 0.5: must be an int"),
        (["prune", "none", "--out", "x", "--recover", "1.5e0"], "1.5e0: must be an integer"),
        (
            ["evaluate", "none", "--split", "tset"],
            "--split tset: no such choice. Did you mean 'test'? Valid: valid, test.",
        ),
        (["classify", "none", "--jsn"], "Did you mean '--json'?"),
        (["classify"], "classify: RUN is missing. See `addnorm help classify`"),
        (["look", "none"], "look: TEXT is missing"),
        (["swap", "none"], "swap: --out is missing"),
        (["swap", "none", "--out"], "swap: --out needs a value. See `addnorm help swap`"),
        (["schema", "recipe.json", "x"], "schema: unexpected: recipe.json x. See `addnorm help"),
        (["info", "none"], "none: no such folder"),
    ],
)
def test_a_mistake_is_one_message(words: list[str], expected: str, addnorm: Command) -> None:
    code, out, err = addnorm(*words)
    assert code == 2
    assert out == ""
    assert expected in err
    assert err.startswith("addnorm: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "code", "expected"),
    [
        (InputError("wrong"), 2, "addnorm: wrong\n"),
        (NonFiniteError("step 3: nan"), 3, "addnorm: step 3: nan\n"),
        (Interrupted(7), 130, "addnorm: stopped after step 7, which is saved\n"),
        (PermissionError(13, "Permission denied", "f"), 2, "addnorm: f: Permission denied\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_how_a_command_ends(
    error: BaseException,
    code: int,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(_: object) -> None:
        raise error

    monkeypatch.setattr(main, "app", fail)
    assert status(["train"]) == code
    assert capsys.readouterr().err == expected


def test_a_fault_of_ours_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise KeyError("ours")

    monkeypatch.setattr(main, "app", fail)
    with pytest.raises(KeyError):
        status(["train"])


def test_an_interrupted_training_prints_how_to_resume(
    tmp_path: Path, run_of: RunOf, addnorm: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = run_of("language").parent / "language.toml"

    def stop(*_: object, **__: object) -> None:
        raise Interrupted(2)

    monkeypatch.setattr("addnorm.runs.train.train_run.train_run", stop)
    code, _, err = addnorm("train", recipe, "--out", tmp_path / "r")
    assert code == 130
    assert err == (
        "addnorm: stopped after step 2, which is saved; "
        f"resume with `addnorm train --resume {tmp_path / 'r'}`\n"
    )
    assert train.Interrupted is Interrupted


@pytest.mark.long
def test_python_m_and_a_reader_that_leaves(run_of: RunOf) -> None:
    """`| head -1`: no traceback, and nothing said when the rest has nowhere to go."""
    command = [sys.executable, "-m", "addnorm", "classify", str(run_of("classification")), "--json"]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdin
    assert process.stdout
    assert process.stderr
    process.stdin.write(b"a fine day\n" * 5000)
    process.stdin.close()
    assert process.stdout.readline().startswith(b'{"label"')
    process.stdout.close()
    assert messages(process.stderr.read().decode()) == []
    process.stderr.close()
    assert process.wait() == 0


@pytest.mark.long
def test_help_ends_well_for_a_reader_that_leaves() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "addnorm", "train", "--help"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout
    assert process.stderr
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 0


@pytest.mark.long
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device")
def test_an_output_that_is_full_is_named() -> None:
    with Path("/dev/full").open("w") as full:
        found = subprocess.run(
            [sys.executable, "-m", "addnorm", "parts"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (found.returncode, found.stderr) == (
        2,
        "addnorm: standard output: No space left on device\n",
    )


@pytest.mark.sampled(2)
@pytest.mark.long
@pytest.mark.parametrize("stream", ["stdin", "stdout", "stderr"])
def test_a_closed_stream_is_accepted(stream: str) -> None:
    number = {"stdin": 0, "stdout": 1, "stderr": 2}[stream]
    found = subprocess.run(
        ["sh", "-c", f'exec "$0" -m addnorm parts {number}>&-', sys.executable],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0
    assert ("rmsnorm" in found.stdout) == (stream != "stdout")
    assert found.stderr == ""


@dataclass
class Group:
    """Two options."""

    share: float = 0.5
    n: int = 1


@pytest.mark.parametrize("value", [0, -5, 2**62 - 1, 1e300, "nan", None, True, (1, 2), Group()])
def test_numbers_that_a_machine_counts_to(value: object) -> None:
    check_number(object, value)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (float("nan"), "must be a finite number"),
        (-float("inf"), "must be a finite number"),
        (2**62, "must be less than 2⁶²"),
        (-(2**70), "must be more than -2⁶²"),
        ((1, 2**62), "must be less than 2⁶²"),
        (Group(share=float("inf")), "`share = inf`: must be a finite number"),
        (Group(n=2**62), "`n = 4611686018427387904`: must be less than"),
    ],
)
def test_others_are_refused(value: object, said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        check_number(object, value)
    assert isinstance(caught.value, InputError) == isinstance(value, Group)


def test_a_least_number() -> None:
    at_least(1)(int, 1)
    for value in (0, -3):
        with pytest.raises(ValueError, match="must be at least 1"):
            at_least(1)(int, value)


def test_only_what_imports_made_is_left_out_of_collections(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "lasting_module.py").write_text("KEPT = [[]]")
    gc.collect()
    try:
        before = gc.get_freeze_count()
        with lasting_imports():
            assert not gc.isenabled()
        assert (gc.isenabled(), gc.get_freeze_count()) == (True, before)
        with lasting_imports():
            importlib.import_module("lasting_module")
        assert gc.get_freeze_count() > before
        with pytest.raises(ModuleNotFoundError, match="absent_module"), lasting_imports():
            importlib.import_module("absent_module")
        assert gc.isenabled()
    finally:
        sys.modules.pop("lasting_module", None)
        gc.unfreeze()
