"""Small texts, and shards of them, written without starting processes."""

import json
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from addnorm.data.shards import writing
from addnorm.data.shards.account import ShardReport
from addnorm.data.shards.options import ShardOptions
from addnorm.data.shards.workers import Encode
from addnorm.data.tokenizing.pieces import Ids
from addnorm.data.tokenizing.tokenizers import BPEConfig, Tokenizer

TEXTS = [f"{n} red cats and {n * n} dogs sat {'down ' * (n % 7)}" for n in range(200)]
TOKENIZER = BPEConfig(vocab_size=300).train(TEXTS)


def write_jsonl(file: Path, texts: Sequence[str]) -> Path:
    """Write texts as JSON lines."""
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), "utf-8")
    return file


@contextmanager
def in_this_process(_: int, encoder: Callable[[], Encode]) -> Generator[Any]:
    """Stand in for the processes that encode."""
    encode = encoder()

    class Here:
        def encoded(self, batches: Iterator[Sequence[str]]) -> Iterator[Sequence[Ids]]:
            return map(encode, batches)

    yield Here()


def shards(
    texts: Sequence[str] | Sequence[Path],
    folder: Path,
    tokenizer: Tokenizer = TOKENIZER,
    **options: Any,
) -> ShardReport:
    """Write texts, or files, as shards."""
    files = [text for text in texts if isinstance(text, Path)]
    if not files:
        texts = [str(text) for text in texts]
        files = [write_jsonl(folder.with_suffix(".jsonl"), texts)]
    with patch.object(writing, "workers", in_this_process):
        return writing.write_shards(files, folder, tokenizer, ShardOptions(**options))


def content(folder: Path) -> dict[str, bytes]:
    """The bytes of every file in a folder."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}
