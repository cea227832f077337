"""Tokenizing texts of any size into shards, with the tokenizer of a run or a new one."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

from pydantic import ValidationError
from rich.console import Console

from addnorm.config import first_problem
from addnorm.data.shards import near
from addnorm.data.shards.account import ShardReport
from addnorm.data.shards.index import INDEX, JOURNAL, TOKENIZER, read_index
from addnorm.data.shards.journal import has_shards
from addnorm.data.shards.options import ShardOptions
from addnorm.data.shards.writing import first_texts, write_shards
from addnorm.data.tokenizing.pieces import Advance
from addnorm.data.tokenizing.tokenizers import BPEConfig, Tokenizer
from addnorm.errors import InputError, items_of, nearest, path_of
from addnorm.files import check_model_folder
from addnorm.machine import cores
from addnorm.runs.files.folder import read_settings
from addnorm.runs.files.lock import LOCK, locked
from addnorm.training.progress import text_progress

LEARNT_FROM = 10**8
"""The characters that a tokenizer is learnt from."""

Show = Callable[[str, int], AbstractContextManager[Advance]]


def tokenize_to_shards(
    inputs: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    tokenizer: Tokenizer | str | Path | None = None,
    options: ShardOptions = ShardOptions(),  # noqa: B008
    workers: int = 1,
    progress: bool = False,
) -> ShardReport:
    """Write texts as shards to the folder `out`; return the account of their documents.

    `inputs` are files, folders and URLs of text (`.txt`) and JSON lines (`.jsonl`), also with `.gz`
    or `.zst`, and of Parquet. `tokenizer` is one, or the folder of a run, of a Hugging Face model
    or of other shards, or a `tokenizer.json`; without it, `options.vocab_size` says how large a new
    one is. The bytes that are written do not depend on `workers`, the number of processes. A call
    that was stopped at any moment is resumed by the same call, and ends with the same bytes.

    Raises `InputError` for inputs that cannot be read, with file and line; and for a folder that
    holds anything else, or was written with other inputs, options or another tokenizer.
    """
    paths = [inputs] if isinstance(inputs, Path) else items_of(inputs, "inputs")
    folder = path_of(out)
    most = 8 * cores()
    if not 1 <= workers <= most:
        raise InputError(
            f"`workers = {workers}`: must be from 1 to {most}, eight for each core of this machine"
        )
    if (tokenizer is None) == (options.vocab_size is None):
        raise InputError(
            "give either `tokenizer`, such as the folder of a run, or `vocab_size` to learn one"
        )
    console = Console(stderr=True, highlight=False, quiet=not progress)
    show: Show = partial(text_progress, console)
    _check_folder(folder)
    if options.dedup == "near":
        near.library()  # before a tokenizer is learnt
    with locked(folder):
        ready = _learnt(paths, folder, options, show) if tokenizer is None else opened(tokenizer)
        with show("tokenizing", 0) as advance:
            return write_shards(
                paths,
                folder,
                ready,
                options,
                n_workers=workers,
                advance=advance,
                say=partial(console.out, highlight=False),
            )


def _check_folder(folder: Path) -> None:
    """Raise `InputError` if a folder holds something other than shards."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: is a file: choose another `out`")
    names = {file.name for file in folder.iterdir()} if folder.is_dir() else set[str]()
    names -= {LOCK, f".{JOURNAL}.partial"}  # what a crash may leave before the journal
    if names and not names & {INDEX, JOURNAL}:
        raise InputError(f"{folder}: something is there already: choose another `out`")
    if INDEX in names:
        read_index(folder)


def opened(given: Tokenizer | str | Path) -> Tokenizer:
    """Return the tokenizer that `given` names: of a run, a Hugging Face folder, shards or a file.

    Raises `InputError` if there is none, or if there is one for each side of a translation.
    """
    if isinstance(given, Tokenizer):
        return given
    path = path_of(given)
    if (path / INDEX).is_file():
        return Tokenizer.load(path / TOKENIZER)
    if path.is_file():
        if (path.parent / "config.json").is_file():
            return opened(path.parent)
        return Tokenizer.load(path)
    if path.suffix and not path.is_dir():
        names = [file.name for file in path.parent.glob("*.json")]
        raise InputError(f"{path}: no such tokenizer.{nearest(path.name, names)}")
    check_model_folder(path)
    tokenizers = read_settings(path).tokenizers
    if tokenizers is None:
        raise InputError(f"{path}: its model reads no text, so it has no tokenizer")
    if tokenizers.source is not tokenizers.target:
        raise InputError(f"{path}: has two tokenizers, and shards are texts of a language model")
    return tokenizers.source


def _learnt(
    paths: Sequence[str | Path], folder: Path, options: ShardOptions, show: Show
) -> Tokenizer:
    """Return the tokenizer with which the folder was begun, or a new one."""
    file = folder / TOKENIZER
    if file.is_file() and (has_shards(folder) or (folder / INDEX).is_file()):
        return Tokenizer.load(file)
    assert options.vocab_size is not None
    try:
        config = BPEConfig(vocab_size=options.vocab_size)
    except ValidationError as error:
        raise InputError(f"`vocab_size = {options.vocab_size}`: {first_problem(error)}") from error
    with show("learning the tokenizer", 0):
        return config.train(first_texts(paths, options, LEARNT_FROM))
