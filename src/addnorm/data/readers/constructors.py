"""Functions that create data from file paths or from Python lists.

Given a path, they return a data configuration as in a recipe, whose files are read later; given a
list, they return a corpus. A single string is always a path.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from reprlib import repr as short
from typing import Any, Literal, TypedDict, TypeVar, Unpack, cast, get_type_hints, overload

from addnorm.arguments import check_types, shows_options
from addnorm.data.examples import Corpus, Example, Labelled, Pair, Tagged, Text
from addnorm.data.readers.conll import ConllConfig
from addnorm.data.readers.rows import Row, assemble, class_in
from addnorm.data.readers.tables import Columns, Record, TableConfig
from addnorm.data.readers.text_files import LinesConfig, ParallelConfig, TextConfig, given
from addnorm.data.tokenizing.word_splitting import words_between_spaces
from addnorm.errors import InputError, choices, path_of

T = TypeVar("T")

FilePath = str | PathLike[str]

Strings = list[str] | tuple[str, ...]


class Splits(TypedDict, total=False):
    """The options for the other splits and for preprocessing.

    `valid` and `test` have the same form as the training data. `valid_fraction` holds out a
    fraction of the training data instead. `lowercase` does not affect labels and tags.
    """

    valid: Any
    test: Any
    valid_fraction: float
    lowercase: bool


@overload
def text(
    train: FilePath, *, unit: Literal["file", "line", "paragraph"] = "file", **more: Unpack[Splits]
) -> TextConfig: ...
@overload
def text(train: Strings, **more: Unpack[Splits]) -> Corpus: ...
@shows_options
def text(
    train: Any,
    *,
    unit: Literal["file", "line", "paragraph"] = "file",
    **more: Unpack[Splits],
) -> TextConfig | Corpus:
    """Text for a language model: a file, or a list of documents.

    `addnorm.text("play.txt", valid_fraction=0.1)`, `addnorm.text(["To be", "or not to be"])`.
    `unit` sets whether a document is a whole file, a line or a paragraph. `valid_fraction` holds
    out the end of a file, or random documents of a list. `valid` and `test` must be files or lists
    like `train`. Raises `InputError` for anything else.
    """
    if (path := _path(train)) is not None:
        return TextConfig(train=path, unit=unit, **_paths(more, _path_of_one))
    if unit != "file":
        raise InputError(f"unit = {unit!r} is for files: in a list each string is a document")

    def example(item: object) -> Example:
        if not isinstance(item, str):
            raise InputError(f"expected a string, not {short(item)}")
        return Text(item)

    return _corpus(train, more, example)


@overload
def pairs(train: tuple[FilePath, FilePath], **more: Unpack[Splits]) -> ParallelConfig: ...
@overload
def pairs(train: list[tuple[str, str]], **more: Unpack[Splits]) -> Corpus: ...
@shows_options
def pairs(train: Any, **more: Unpack[Splits]) -> ParallelConfig | Corpus:
    """Parallel text for translation: two files with parallel lines, or a list of pairs.

    `addnorm.pairs(("train.en", "train.de"), valid=("valid.en", "valid.de"))`,
    `addnorm.pairs([("one", "eins"), ("two", "zwei")])`. Raises `InputError` for anything else.
    """
    if isinstance(train, tuple | str | PathLike):
        return ParallelConfig(train=_two_paths(train), **_paths(more, _two_paths))

    def example(item: object) -> Example:
        match item:
            case (str(source), str(target)):
                return Pair(source, target)
            case _:
                raise InputError(f"expected (source, target), two strings, not {short(item)}")

    return _corpus(train, more, example)


@overload
def labelled(
    train: FilePath, *, separator: str = " ", label_first: bool = True, **more: Unpack[Splits]
) -> LinesConfig: ...
@overload
def labelled(
    train: list[tuple[str, str]] | list[tuple[tuple[str, str], str]], **more: Unpack[Splits]
) -> Corpus: ...
@shows_options
def labelled(
    train: Any,
    *,
    separator: str = " ",
    label_first: bool = True,
    **more: Unpack[Splits],
) -> LinesConfig | Corpus:
    """Texts with class labels: a file with `label text` on each line, or a list of (text, label).

    `addnorm.labelled("train.txt", separator="\\t")`, `addnorm.labelled([("a fine day", "good")])`;
    two texts that are read together are a pair: `[(("a dog runs", "an animal moves"), "follows")]`.
    `separator` and `label_first` describe the lines of a file. Raises `InputError` for anything
    else.
    """
    if (path := _path(train)) is not None:
        lines: Any = {"separator": separator, "label_first": label_first}
        return LinesConfig(train=path, **lines, **_paths(more, _path_of_one))

    if separator != " " or label_first is not True:
        raise InputError(
            "`separator` and `label_first` are for the lines of a file: leave them out"
        )

    def example(item: object) -> Example:
        match item:
            case (str(first), str(label)):
                return Labelled(first, class_in(label, "this row"))
            case ((str(first), str(second)), str(label)):
                return Labelled(first, class_in(label, "this row"), second)
            case _:
                raise InputError(
                    f"expected (text, label), or ((text, text), label), strings, not {short(item)}"
                )

    return _corpus(train, more, example)


@overload
def tagged(train: FilePath, **more: Unpack[Splits]) -> ConllConfig: ...
@overload
def tagged(train: list[tuple[Any, Any]], **more: Unpack[Splits]) -> Corpus: ...
@shows_options
def tagged(train: Any, **more: Unpack[Splits]) -> ConllConfig | Corpus:
    """Sentences with a tag for each word: a CoNLL file, or a list of (words, tags).

    Words and tags are lists, or strings separated by spaces: `addnorm.tagged([("Anna sings", "B-PER
    O")])`. Raises `InputError` for anything else, and for a word without a tag.
    """
    if (path := _path(train)) is not None:
        return ConllConfig(train=path, **_paths(more, _path_of_one))

    def example(item: object) -> Example:
        match item:
            case (words, tags):
                tokens, labels = _words(words), _words(tags)
            case _:
                raise InputError(f"expected (words, tags), not {short(item)}")
        if len(tokens) != len(labels):
            raise InputError(f"{len(tokens)} words but {len(labels)} tags in {short(item)}")
        return Tagged(tokens, labels)

    return _corpus(train, more, example)


class TableOptions(Splits, total=False):
    """The column names for one kind of example."""

    source: str
    target: str
    text: str
    text_pair: str
    label: str
    labels: str
    values: str
    tokens: str
    tags: str


@overload
def table(train: FilePath, **more: Unpack[TableOptions]) -> TableConfig: ...
@overload
def table(train: list[dict[str, Any]], **more: Unpack[TableOptions]) -> Corpus: ...
@shows_options
def table(train: Any, **more: Unpack[TableOptions]) -> TableConfig | Corpus:
    """A table with named columns (.tsv, .csv, .jsonl, .parquet), or a list of dictionaries.

    The columns given determine the task: `text` alone, `text` and `label`, `source` and `target`,
    or `tokens` and `tags`: `addnorm.table("reviews.csv", text="review", label="stars")`; `text` and
    `labels` for multi-label classification, `text` and `values` for regression. Raises `InputError`
    for other combinations, and for a missing column.
    """
    names = {name: value for name, value in more.items() if name in Columns.__annotations__}
    rest = cast(Splits, {name: value for name, value in more.items() if name not in names})
    columns: Any = names
    if (path := _path(train)) is not None:
        return TableConfig(train=path, **columns, **_paths(rest, _path_of_one))
    _check_names(more, TableOptions)
    reader = TableConfig(train=Path(), **columns)

    def example(item: object) -> Example | str:
        if not isinstance(item, Mapping):
            raise InputError(f"expected a dictionary, not {short(item)}")
        return reader.row("this row", cast(Record, item)).content

    return _corpus(train, rest, example)


def _corpus(train: Any, more: Splits, example: Callable[[object], Example | str]) -> Corpus:
    """Build a corpus from lists; examples are located by their index in the list."""
    splits = {"train": train, **given(None, more.get("valid"), more.get("test"))}
    _check_names(more, Splits)
    check_types(get_type_hints(Splits), more)
    return assemble(
        {split: _rows(split, items, example) for split, items in splits.items()},
        more.get("lowercase", False),
        more.get("valid_fraction", 0.0),
    )


def _rows(split: str, items: Any, example: Callable[[object], Example | str]) -> Iterable[Row]:
    if not isinstance(items, list | tuple):
        also = "a file or a list" if split == "train" else "a list, as train is one"
        raise InputError(f"{split}: expected {also}, not {short(items)}")
    for n, item in enumerate(cast(Sequence[object], items)):
        where = f"{split}[{n}]"
        try:
            yield Row(where, example(item))
        except InputError as error:
            raise InputError(f"{where}: {error}") from error


def _check_names(more: Mapping[str, Any], arguments: type) -> None:
    """Raise `InputError` for an argument that does not apply to a list."""
    valid = arguments.__annotations__
    for name in more:
        if name not in valid:
            raise InputError(f"{name} is not an argument for a list.{choices(name, valid)}")


def _paths(more: Splits, path: Callable[[Any], T]) -> dict[str, Any]:
    """Return the arguments for reading from files, with the paths of the other splits."""
    arguments: dict[str, Any] = dict(more)
    for split in ("valid", "test"):
        if arguments.get(split) is not None:
            arguments[split] = path(arguments[split])
    return arguments


def _path(train: Any) -> Path | None:
    """Return the path of a file; None if a list was given."""
    return _path_of_one(train) if isinstance(train, str | PathLike) else None


def _path_of_one(path: Any) -> Path:
    if not isinstance(path, str | PathLike):
        raise InputError(f"expected the path of a file, as train is one, not {short(path)}")
    if "\n" in str(path) or len(str(path)) > 1000:
        raise InputError("a string is the path of a file: give a text itself in a list, [text]")
    return path_of(path)


def _two_paths(paths: Any) -> tuple[Path, Path]:
    match paths:
        case tuple((source, target)):
            return _path_of_one(source), _path_of_one(target)
        case _:
            raise InputError(
                f"expected the paths of two files, (source, target), not {short(paths)}"
            )


def _words(words: Any) -> tuple[str, ...]:
    match words:
        case str():
            return tuple(words_between_spaces(words))
        case list() | tuple() if all(isinstance(word, str) for word in words):
            return tuple(words)
        case _:
            raise InputError(f"expected words, not {short(words)}")
