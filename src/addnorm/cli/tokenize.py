"""`addnorm tokenize`: texts of any size to shards of ids, for long training."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from addnorm.cli.main import NewPlace, at_least
from addnorm.data.shards.options import ShardOptions
from addnorm.errors import InputError

USUAL = ShardOptions()


def tokenize(
    *inputs: str,
    out: NewPlace,
    tokenizer: Path | None = None,
    workers: Annotated[int, Parameter(validator=at_least(1))] = 1,
    options: Annotated[ShardOptions, Parameter(name="*")] = USUAL,
) -> None:
    """Write texts of any size as shards of ids, which `data.kind = "shards"` reads.

    Texts are `.txt` and `.jsonl` files, also with `.gz` or `.zst`, and `.parquet` files, here or at
    a URL. The shards do not depend on the number of processes. Stopped at any moment, the same
    command resumes, and ends with the same shards.
    Example: `addnorm tokenize texts --out shards --vocab-size 32000 --workers 2`.

    Parameters
    ----------
    inputs
        Files, folders and URLs, in the order of the texts.
    out
        The folder to write.
    tokenizer
        The folder of a run, of a Hugging Face model or of other shards, or a `tokenizer.json`.
    workers
        How many processes encode, each with one thread.
    """
    if not inputs:
        raise InputError("tokenize needs texts: name files, folders or URLs")
    from addnorm.cli.terminal import console
    from addnorm.runs.sharding import tokenize_to_shards

    report = tokenize_to_shards(
        inputs, out, tokenizer=tokenizer, options=options, workers=workers, progress=True
    )
    n_train = report.documents.kept - report.valid_documents
    held_out = (
        f"{report.valid_documents:,} kept in {out / 'valid'}; {n_train:,} kept for training: "
    )
    console.out(
        f"{report.documents}; {held_out if report.valid_documents else ''}"
        f"{report.characters:,} characters, {report.tokens:,} tokens in {report.shards:,} shards",
        highlight=False,
    )
    console.out(f'Next: data.kind = "shards", data.train = "{out}"', highlight=False)
