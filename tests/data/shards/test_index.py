"""Reading shards: any part of the stream, and no damage without a word."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.data.shards.tiny import TEXTS, TOKENIZER, shards

from addnorm.data.examples import Text
from addnorm.data.ids.encoding import in_memory
from addnorm.data.shards.index import (
    INDEX,
    Framing,
    ShardFolder,
    documents_file,
    tokens_file,
)
from addnorm.data.tokenizing.pieces import Ids
from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.data.tokenizing.tokenizers import Tokenizer
from addnorm.errors import InputError

ONE_TOKEN = Tokenizer(TOKENIZER.codec.inner, bos_id=3, before=(), after=())  # type: ignore
"""A tokenizer like that of GPT-2, of which one token both ends and begins a text."""


def stream_of(tokenizer: Tokenizer, texts: list[str]) -> Ids:
    """The stream of texts in memory, with a token that ends and begins there once."""
    compact = in_memory(
        [Text(text) for text in texts], Tokenizers(tokenizer, tokenizer), lambda _: None
    )
    if tokenizer.before is None:
        return compact.tokens.ids
    ends = compact.tokens.starts + compact.tokens.lengths
    return np.delete(compact.tokens.ids, ends[:-1])


@pytest.fixture(scope="module", params=[TOKENIZER, ONE_TOKEN], ids=["two tokens", "one token"])
def texts_in(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """A folder of many small shards, and its stream."""
    folder = tmp_path_factory.mktemp("shards") / "s"
    shards(TEXTS, folder, request.param, shard_tokens=100)
    return ShardFolder.open(folder), stream_of(request.param, TEXTS)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_part_is_that_of_the_texts_in_memory(
    texts_in: tuple[ShardFolder, Ids], data: st.DataObject
) -> None:
    folder, stream = texts_in
    assert folder.n_tokens == len(stream)
    start = data.draw(st.integers(0, len(stream) - 1))
    stop = data.draw(st.integers(start + 1, len(stream)))
    assert folder.tokens(start, stop).tolist() == stream[start:stop].tolist()
    starts = np.flatnonzero(stream == folder.framing.start[0])
    if folder.framing.shared:
        starts = starts[:-1]  # the last is the end of the last document
    expected = starts[(starts >= start) & (starts < stop)]
    assert folder.starts(start, stop).tolist() == expected.tolist()


def test_each_document_is_that_of_the_texts_in_memory(texts_in: tuple[ShardFolder, Ids]) -> None:
    folder, _ = texts_in
    assert len(folder.documents_xxh3) > 10
    assert folder.n_documents == len(TEXTS)
    for i, text in enumerate(TEXTS):
        start, *ids, end = folder.document(i).tolist()
        assert (start, end) == (folder.framing.start[0], folder.framing.end)
        assert ids == TOKENIZER.encode(text)


def test_ids_are_little_endian_and_as_small_as_the_vocabulary_allows(tmp_path: Path) -> None:
    shards(["to be"], tmp_path / "s")
    expected = np.array([2, *TOKENIZER.encode("to be"), 3], "<u2").tobytes()
    assert tokens_file(tmp_path / "s", 0).read_bytes() == expected
    large = Framing.of(TOKENIZER)
    assert large.ids == np.dtype("<u2")


def read_all(folder: Path) -> None:
    """Open shards and read everything in them."""
    opened = ShardFolder.open(folder)
    opened.starts(0, opened.n_tokens)
    opened.tokens(0, opened.n_tokens)


def damaged(folder: Path, file: Path, change: bytes) -> str:
    """The message where a file is replaced by something else."""
    content = file.read_bytes()
    file.write_bytes(change)
    try:
        with pytest.raises(InputError) as error:
            read_all(folder)
    finally:
        file.write_bytes(content)
    return str(error.value)


def test_a_changed_file_is_refused_by_name(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    shards(TEXTS, folder, shard_tokens=1000)
    for file in (tokens_file(folder, 1), documents_file(folder, 1)):
        content = file.read_bytes()
        for change in (content[:-1], content + b"\0", b""):
            assert f"{file}: has {len(change):,} bytes" in damaged(folder, file, change)
        middle = len(content) // 2
        flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        assert f"{file}: changed or cut short" in damaged(folder, file, flipped)
    file = tokens_file(folder, 0)
    content = file.read_bytes()
    file.unlink()
    with pytest.raises(InputError, match=rf"{file}: missing"):
        ShardFolder.open(folder)
    file.write_bytes(content)
    ShardFolder.open(folder)


def test_a_file_that_is_cut_after_opening_is_refused(tmp_path: Path) -> None:
    shards(TEXTS, tmp_path / "s")
    folder = ShardFolder.open(tmp_path / "s")
    file = tokens_file(tmp_path / "s", 0)
    file.write_bytes(file.read_bytes()[:10])
    with pytest.raises(InputError, match=rf"{file}: changed or cut short"):
        folder.tokens(0, 5)
    file.unlink()
    with pytest.raises(InputError, match=rf"{file} cannot be read"):
        folder.tokens(0, 5)


def test_an_index_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no folder of shards"):
        ShardFolder.open(tmp_path)
    (tmp_path / "progress.journal").touch()
    with pytest.raises(InputError, match="not finished"):
        ShardFolder.open(tmp_path)
    shards(["one"], tmp_path / "s")
    tree = json.loads((tmp_path / "s" / INDEX).read_text())
    for change, message in (
        ({"version": 2}, "version 2 of shards"),
        ({"format": "other"}, "not an index of shards"),
        ({"shards": 3}, "damaged"),
        ({"framing": {}}, "damaged"),
        ({"shards": []}, "damaged: .*no shards"),
        ({"shards": tree["shards"] * 2}, "damaged: .*tokens = "),
        ({"shards": [tree["shards"][0] | {"tokens": "3"}]}, "damaged: .*not a positive integer"),
        ({"documents": 2}, "damaged: .*documents = 2"),
        ({"characters": "x"}, "damaged: .*characters = x"),
    ):
        (tmp_path / "s" / INDEX).write_text(json.dumps(tree | change))
        with pytest.raises(InputError, match=message):
            ShardFolder.open(tmp_path / "s")
    (tmp_path / "s" / INDEX).write_text("{")
    with pytest.raises(InputError, match="damaged"):
        ShardFolder.open(tmp_path / "s")
