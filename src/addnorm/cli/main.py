"""The `addnorm` command: subcommands and error handling."""

import gc
import io
import os
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import fields, is_dataclass
from errno import ENOENT, ENOSPC
from pathlib import Path
from shutil import get_terminal_size
from typing import Annotated, Any, cast, get_args

from cyclopts import App, CoercionError, CycloptsError, Group, Parameter, Token, convert

from addnorm import __version__
from addnorm.arguments import problem_of_number
from addnorm.atomic import check_writable
from addnorm.cli.interruption import INTERRUPTED, interruptible
from addnorm.cli.messages import in_options, message_of
from addnorm.errors import (
    InputError,
    Interrupted,
    NonFiniteError,
    RankLostError,
    choices,
    print_warnings,
)
from addnorm.folding import folded


def check_number(_: object, value: object) -> None:
    """Raise `ValueError` for NaN, infinity, and integers that are too large.

    Of a group of options, each is checked, and the error is an `InputError` that names it.
    """
    for number in _each(value):
        if problem := _problem(number):
            raise ValueError(problem)
    if is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    for name, given in value.items() if isinstance(value, dict) else ():
        for number in _each(given):
            if problem := _problem(number):
                raise InputError(f"`{name} = {number}`: {problem}")


def _each(value: object) -> tuple[object, ...]:
    """The values of an option, as a tuple also for a single value."""
    return cast(tuple[object, ...], value) if isinstance(value, tuple) else (value,)


def _problem(value: object) -> str:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return problem_of_number(value) if is_number else ""


def at_least(least: int) -> Callable[[object, object], None]:
    """A check that a number is at least `least`."""

    def check(kind: object, value: object) -> None:
        check_number(kind, value)
        if isinstance(value, int | float) and value < least:
            raise ValueError(f"must be at least {least}")

    return check


def check_place(_: object, place: object) -> None:
    """Raise `InputError` where no file or folder can be made."""
    if isinstance(place, Path):
        check_writable(place)


NewPlace = Annotated[Path, Parameter(validator=check_place)]
"""The option of a command that names the file or folder to write, checked before its work."""


def check_file_place(kind: object, place: object) -> None:
    """Raise `InputError` where no file can be made, such as at the place of a folder."""
    check_place(kind, place)
    if isinstance(place, Path) and place.is_dir():
        raise InputError(f"{place}: is a folder: give the name of a file in it")


NewFile = Annotated[Path, Parameter(validator=check_file_place)]
"""The option of a command that names the file to write, checked before its work."""


def convert_words(hint: Any, words: Sequence[Token]) -> Any:
    """Convert the arguments of an option.

    Raises `CoercionError` for a fraction as an integer, for `None` as a value, and for an empty
    word as a file: a variable of the shell that is not set, which `Path` takes for this folder.
    """
    kinds = [kind for kind in get_args(hint) if kind is not type(None)] or [hint]
    if int in kinds and str not in kinds:
        for word in words:
            if _is_fraction(word.value):
                raise CoercionError(token=word, target_type=int)
    if Path in kinds:
        for word in words:
            if not word.value:
                raise CoercionError(token=word, target_type=Path)
    value = convert(hint, words)
    if value is None and words:
        raise CoercionError(token=words[0], target_type=kinds[0])
    return value


def _is_fraction(word: str) -> bool:
    try:
        return float(word) % 1 != 0
    except ValueError:
        return False


app = App(
    name="addnorm",
    version=__version__,
    help="Build, train and use your own Transformers. Start with `addnorm demo`.",
    help_format="markdown",
    result_action="return_value",
    exit_on_error=False,
    print_error=False,
    group_commands=Group("Help", sort_key=99),
    default_parameter=Parameter(validator=check_number, converter=convert_words),
)
GROUPS = {
    "Start": ("demo", "new", "parts", "schema"),
    "Train": ("train", "plan", "tokenize", "distill"),
    "Use": ("generate", "chat", "classify", "predict", "forecast", "fill", "embed", "serve"),
    "Look": ("info", "evaluate", "plot", "look"),
    "Change": ("swap", "prune", "quantize", "merge"),
    "Compare": ("compare", "ablate", "lab"),
    "Export": ("export",),
    "Machine": ("check", "calibrate", "bench"),
}
"""The commands as help shows them, in the order of a first day."""

SAVES_NOTHING = {*GROUPS["Use"], *GROUPS["Look"]} - {"serve"}
"""The commands that can end at any moment: they have no work to save."""

COMMANDS = tuple(name for names in GROUPS.values() for name in names)
for place, (title, names) in enumerate(GROUPS.items()):
    group = Group(title, sort_key=place)
    for i, name in enumerate(names):  # imported on use
        app.command(f"addnorm.cli.{name}:{name}", name=name, group=group, sort_key=i)


@app.command(name="help")
def help_of(command: str = "") -> None:
    """Show what a command does, and its options.

    Example: `addnorm help train`.

    Parameters
    ----------
    command
        The command; by default all of them, a sentence each.
    """
    if command and command not in COMMANDS:
        raise InputError(f"no command {command!r}.{choices(command, COMMANDS)}")
    app.help_print([command] if command else [])


app.register_install_completion_command(
    help="Have the shell complete commands and options: bash, zsh or fish."
)


def main() -> None:
    """Run the command given by the arguments, and exit with its status."""
    for name in ("stdout", "stderr"):  # closed by the parent process: messages need a place
        if getattr(sys, name) is None:
            nowhere = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
            setattr(sys, name, nowhere)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")  # input is UTF-8, so output is too
    print_warnings()
    words = sys.argv[1:]
    with interruptible() if words and words[0] in SAVES_NOTHING else nullcontext():
        code = status(words)
    sys.exit(code)


words_given: ContextVar[Sequence[str]] = ContextVar("words_given", default=())
"""The words of the command that runs."""

ENDS: dict[type[Exception], int] = {NonFiniteError: 3, Interrupted: INTERRUPTED}
"""The exit statuses of training that ended early."""


def status(words: Sequence[str]) -> int:
    """Run a command; return its exit status.

    0 done, 1 a check found something wrong or one of several processes ended, 2 wrong input or a
    file that cannot be read or written, 3 training met a number that is not finite, 130 stopped by
    Ctrl-C. A fault of AddNorm's own keeps its traceback.
    """
    words_given.set(words)
    try:
        if not words or words[0] in ("help", "--help", "-h"):
            _import_commands()
        code: int | None = app(words)
        sys.stdout.flush()
        return code or 0
    except (BrokenPipeError, SystemExit) as error:
        return _without_reader(error)
    except (InputError, CycloptsError) as error:
        text = message_of(error, app, words)
        return failed("; ".join([text, *getattr(error, "__notes__", ())]), 2)
    except OSError as error:
        return failed(f"{_place(error)}{error.strerror or error}", 2)
    except (NonFiniteError, Interrupted) as error:
        return failed(error, ENDS[type(error)])
    except RankLostError as error:
        return _lost(error)
    except KeyboardInterrupt:
        return INTERRUPTED


def _without_reader(error: BaseException) -> int:
    """The status where the reader of our output closed the pipe, as `head` does: 0, no error.

    Raises an exit that has another cause; rich turns a closed pipe into one.
    """
    if not isinstance(error, BrokenPipeError) and not isinstance(
        error.__context__, BrokenPipeError
    ):
        raise error
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what Python flushes at exit
    return 0


def _lost(error: RankLostError) -> int:
    """Report that another process has ended, unless the launcher does; return the exit status."""
    from addnorm.training.parallel.plan import EXPLAINED, launched

    here = launched()
    if error.seen and here.by_us and here.rank == 0:
        return 1
    status = EXPLAINED if here.by_us else 1
    return status if error.reported else failed(error, status)


@contextmanager
def lasting_imports() -> Generator[None]:
    """In this context, which imports modules, collect no garbage, and never look at them later.

    Imports make a quarter of a million objects that stay. Going through them while they are made
    takes a sixth of the time of importing torch and a quarter of that of importing AddNorm.
    """
    enabled, imported = gc.isenabled(), len(sys.modules)
    gc.disable()
    try:
        yield
    finally:
        if len(sys.modules) > imported:
            gc.freeze()
        if enabled:
            gc.enable()


def with_options(message: str, command: str) -> str:
    """A message of the library with the command's options in place of arguments."""
    return in_options(message, app, [command])


def _place(error: OSError) -> str:
    """Return the file named in an error, or else what an error without a name is about."""
    if error.filename:
        return f"{error.filename}: "
    return {ENOENT: "the current folder: ", ENOSPC: "standard output: "}.get(error.errno or 0, "")


def _import_commands() -> None:
    """Import every command, so that the overview can show their first sentences."""
    for name in COMMANDS:
        assert app[name]


def failed(error: Exception | str, code: int) -> int:
    """Print an error and its notes as one message; return the exit status."""
    notes = getattr(error, "__notes__", [])
    width = get_terminal_size().columns if sys.stderr.isatty() else None
    print(folded("; ".join([f"addnorm: {error}", *notes]), width), file=sys.stderr)
    return code
