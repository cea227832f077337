"""Error messages of the command line: what is wrong, in terms of the options that were given."""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from cyclopts import (
    App,
    CoercionError,
    CycloptsError,
    MissingArgumentError,
    UnknownCommandError,
    UnknownOptionError,
    UnusedCliTokensError,
    ValidationError,
)

from addnorm.cli.fields import PARTS, TABLES, UnknownWordError, unknown_field
from addnorm.errors import InputError, choices, nearest

NAME = re.compile(r"`([a-z_][a-z_0-9.]*)(?: = ([^`]*))?`")
"""An argument of the library in its messages: `name`, or `name = value`."""

COMMANDS = {
    "run.generate(texts)": "generate",
    "run.translate(texts)": "generate",
    "run.transcribe(files)": "generate",
    "run.classify(texts)": "classify",
    "run.classify_files(files)": "classify",
    "run.predict_series(files)": "classify",
    "run.predict(texts)": "classify",
    "run.tag(sentences)": "classify",
    "run.predict(rows)": "predict",
    "run.forecast(history)": "forecast",
    "run.fill(text)": "fill",
    "run.embed(texts)": "embed",
    "compare([runs/a, runs/b])": "compare runs/a runs/b",
    'SwapOptions(sets=("position=none",))': "swap … --set position=none",
    "Int8Config(activations=DynamicConfig())": "quantize … --to int8 --dynamic",
    "Int4Config(group_size=32)": "quantize … --to int4 --group-size 32",
}
"""The calls that messages of the library advise, and the commands that do the same."""

KINDS = {
    int: "an integer",
    float: "a number",
    bool: "true or false",
    Path: "the name of a file or folder",
}


def message_of(error: Exception, app: App, words: Sequence[str]) -> str:
    """The one-line message for an error of a command, which names options and values."""
    match error:
        case UnknownWordError():
            return _unknown_word(error.word, _command(app, words))
        case InputError():
            return in_options(str(error), app, words)
        case ValidationError() if isinstance(error.__cause__, InputError):
            return message_of(error.__cause__, app, words)
        case CycloptsError():
            return " ".join(_of_arguments(error, app).split())
        case _:
            return str(error)


def in_options(message: str, app: App, words: Sequence[str]) -> str:
    """A message of the library with commands and options in place of its calls and arguments."""
    for call, same in COMMANDS.items():
        message = message.replace(f"`{call}`", f"`addnorm {same}`")
    if NAME.search(message) is None:
        return message
    command = _command(app, words)
    options, fields = options_of(command), takes_fields(command)
    by_place, given = placed_options(command), {str(word).partition("=")[0] for word in words}

    def option(match: re.Match[str]) -> str:
        name, value = match.groups()
        meant = options.get(plain(name)) or _abbreviated(name, options, words)
        if (
            meant is None
            and fields
            and name.partition(".")[0] in (PARTS if "." not in name else TABLES)
        ):
            meant = f"--{name}"
        if meant is None:
            return match[0]
        if meant in by_place and meant not in given:
            meant = meant.removeprefix("--").upper()
        return meant if value is None else f"{meant} {_as_given(meant, value, words)}"

    return NAME.sub(option, message)


def _as_given(option: str, value: str, words: Sequence[str]) -> str:
    """A value in the form that was typed: 0 for 0.0."""
    value = value.strip("'")
    for word, following in pairwise([*map(str, words), ""]):
        name, equals, text = word.partition("=")
        given = text if equals else following
        if name == option and _number(given) == _number(value) is not None:
            return given
    return value


def _number(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None


def options_of(command: App) -> dict[str, str]:
    """The options of a command, by the names of parameters that the library uses too."""
    return {
        plain(name): option
        for argument in command.assemble_argument_collection()
        if (option := next((name for name in argument.names if name.startswith("--")), None))
        for name in (argument.field_info.name, option)
    }


def placed_options(command: App) -> set[str]:
    """The options of a command that are also given by their place, without a name."""
    arguments = command.assemble_argument_collection()
    return {
        name
        for argument in arguments
        if argument.field_info.is_positional
        for name in argument.names
    }


def plain(name: str) -> str:
    """Return a name without the dashes and underscores by which options and parameters differ."""
    return name.replace("_", "").replace("-", "")


def takes_fields(command: App) -> bool:
    """Whether a command accepts recipe fields, such as `--train.lr 3e-4`."""
    return any(
        argument.field_info.name == "overrides"
        for argument in command.assemble_argument_collection()
    )


def _abbreviated(name: str, options: Mapping[str, str], words: Sequence[str]) -> str | None:
    """The option that stands for a recipe field, such as distilling's `--temperature`."""
    option = options.get(plain(name.rpartition(".")[2]))
    given = {str(word).partition("=")[0] for word in words}
    return option if option in given and f"--{name}" not in given else None


def _command(app: App, words: Sequence[str]) -> App:
    _, apps, _ = app.parse_commands(list(words))
    return apps[-1]


def _unknown_word(word: str, command: App) -> str:
    options = [*options_of(command).values(), "--help"]
    if takes_fields(command):
        return unknown_field(word, options)
    return f"Unknown option: {word}.{nearest(word, options)}"


def _of_arguments(error: CycloptsError, app: App) -> str:
    """The message for arguments that cannot be parsed."""
    command = " ".join(error.command_chain or ())
    match error:
        case UnusedCliTokensError(unused_tokens=[*left]) if left:
            return f"{command}: unexpected: {' '.join(left)}. See `addnorm help {command}`"
        case MissingArgumentError(keyword=str(option)):
            return f"{command}: {option} needs a value. See `addnorm help {command}`"
        case MissingArgumentError(argument=one, keyword=None) if one is not None and not one.tokens:
            missing = _name(one) if not one.field_info.is_positional else _shown(one)
            return f"{command}: {missing} is missing. See `addnorm help {command}`"
        case UnknownOptionError(token=token, argument_collection=known):
            word = token.keyword or token.value
            return f"Unknown option: {word}.{nearest(word, [*_options(known), '--help'])}"
        case UnknownCommandError(unused_tokens=[word, *_]):
            group = app if not error.command_chain else app[command]
            names = [name for name in group if not name.startswith("-")]
            return f"no command {word!r}.{choices(word, names)}"
        case CoercionError(argument=one, token=token) if one is not None and token is not None:
            return _not_a_value(error, one, token)
        case ValidationError(argument=one) if one is not None and one.tokens:
            token = one.tokens[0]
            return f"{token.keyword or _shown(one)} {token.value}: {error.exception_message}"
        case _:
            return str(error)


def _not_a_value(error: CoercionError, argument: Any, token: Any) -> str:
    """The message for a word that is not a valid value of an option."""
    given = f"{token.keyword or _shown(argument)} {token.value or repr('')}"
    if valid := [*literals(argument.hint)]:
        return f"{given}: no such choice.{choices(token.value, valid)}"
    if (kind := KINDS.get(error.target_type)) is not None:  # pyright: ignore[reportArgumentType]
        return f"{given}: must be {kind}"
    return str(error)


def literals(hint: Any) -> Iterator[str]:
    """The words that an annotation allows, if it allows nothing else."""
    if get_origin(hint) is Literal:
        for word in get_args(hint):
            yield str(word).lower() if isinstance(word, bool) else str(word)
    else:
        for inner in get_args(hint):
            yield from literals(inner)


def _options(arguments: Any) -> list[str]:
    return [name for argument in arguments for name in argument.names if name.startswith("--")]


def _name(argument: Any) -> str:
    return str(argument.name)


def _shown(argument: Any) -> str:
    return _name(argument).lstrip("-").upper()
