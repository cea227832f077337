"""Writing shards: the same bytes whoever writes and whatever interrupts; every document counted."""

import random
import subprocess
import sys
import time
from collections.abc import Callable
from errno import ENOSPC
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.data.shards.tiny import TEXTS, TOKENIZER, content, shards, write_jsonl

from addnorm.data.shards import split_writer, writing
from addnorm.data.shards.account import Account
from addnorm.data.shards.index import INDEX, ShardFolder
from addnorm.data.shards.index import TOKENIZER as TOKENIZER_FILE
from addnorm.data.tokenizing.tokenizers import BPEConfig, CharConfig
from addnorm.errors import InputError

MANY: dict[str, Any] = {"shard_tokens": 300, "dedup": "exact", "valid_fraction": 0.2}
REPEATED = [*TEXTS, "", *TEXTS[:50], " \n", *TEXTS[20:90]]


def texts_of(folder: Path) -> list[str]:
    """The texts in shards."""
    opened = ShardFolder.open(folder)
    return [TOKENIZER.decode(opened.document(i).tolist()) for i in range(opened.n_documents)]


def test_every_document_is_kept_or_counted(tmp_path: Path) -> None:
    report = shards(REPEATED, tmp_path / "s", **MANY)
    assert report.documents == Account(len(REPEATED), len(TEXTS), empty=2, duplicate=120)
    train, valid = texts_of(tmp_path / "s"), texts_of(tmp_path / "s" / "valid")
    assert len(valid) == report.valid_documents
    assert 0.1 < len(valid) / len(TEXTS) < 0.3
    assert [text for text in TEXTS if text in {*train}] == train
    assert [text for text in TEXTS if text in {*valid}] == valid
    assert sorted(train + valid) == sorted(TEXTS)
    assert str(report.documents) == (
        "322 read, 200 kept, 2 left out: empty, 120 left out: duplicate"
    )


def test_near_copies_are_left_out_of_both_splits(tmp_path: Path) -> None:
    texts = [" ".join(f"{n}{word}" for word in range(60)) for n in range(40)]
    copies = [text.upper().replace(" ", ", ") + "!" for text in texts]
    options = MANY | {"dedup": "near"}
    report = shards([*texts, *copies, *texts[:9]], tmp_path / "s", **options)
    assert report.documents == Account(89, 40, duplicate=9, near=40)
    assert "9 left out: duplicate, 40 left out: near duplicate" in str(report.documents)
    assert sorted(texts_of(tmp_path / "s") + texts_of(tmp_path / "s" / "valid")) == sorted(texts)
    assert shards([*texts, *copies, *texts[:9]], tmp_path / "s", **options) == report
    with pytest.raises(InputError, match=r"differ in near_threshold: 0\.8, and now 0\.7"):
        shards([*texts, *copies, *texts[:9]], tmp_path / "s", **options, near_threshold=0.7)


def test_without_dedup_equal_documents_are_in_one_split(tmp_path: Path) -> None:
    report = shards(REPEATED, tmp_path / "s", valid_fraction=0.5)
    assert report.documents == Account(len(REPEATED), 320, empty=2)
    train, valid = texts_of(tmp_path / "s"), texts_of(tmp_path / "s" / "valid")
    assert not {*train} & {*valid}
    assert len(train) + len(valid) == 320


class KilledError(BaseException):
    """The process is killed."""


def interrupted(write: Callable[[], Any], after: int) -> bool:
    """Run until files were written durably so often; return whether it was killed before its end.

    Whatever the system has not been asked to keep is lost, which here is the unfinished shard.
    """
    left = after

    def counted(step: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            if left == 0:
                raise KilledError
            left -= 1
            return step(*arguments, **options)

        return call

    steps = [
        (split_writer, "publish"),
        (split_writer, "atomic_write"),
        (writing, "atomic_write"),
        (writing.Journal, "_append"),
        (writing.Journal, "remove"),
    ]
    patches = [patch.object(where, name, counted(getattr(where, name))) for where, name in steps]
    for change in patches:
        change.start()
    try:
        write()
    except KilledError:
        return True
    finally:
        for change in patches:
            change.stop()
    return False


@pytest.mark.parametrize("dedup", ["exact", "near"])
def test_killed_before_any_file_it_resumes_and_ends_equal(tmp_path: Path, dedup: str) -> None:
    texts = [*TEXTS[:40], "", *TEXTS[:10], *(f"{text} so" for text in TEXTS[5:20])]
    file = write_jsonl(tmp_path / "a.jsonl", texts)
    other = write_jsonl(tmp_path / "b.jsonl", texts[::-1])
    options = MANY | {"shard_tokens": 400, "dedup": dedup}
    report = shards([file, other], tmp_path / "whole", **options)
    assert bool(report.documents.near) == (dedup == "near")
    whole = content(tmp_path / "whole")
    after, killed = 0, True
    while killed:
        folder = tmp_path / f"killed {after}"
        killed = interrupted(lambda folder=folder: shards([file, other], folder, **options), after)
        assert shards([file, other], folder, **options) == report
        assert content(folder) == whole
        after += 1
    assert after > 10


@pytest.mark.long
@settings(max_examples=5)
@given(data=st.data())
def test_killed_again_and_again(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("shards")
    file = write_jsonl(folder / "a.jsonl", REPEATED)
    shards([file], folder / "whole", **MANY)
    while interrupted(lambda: shards([file], folder / "s", **MANY), data.draw(st.integers(8, 40))):
        pass
    assert content(folder / "s") == content(folder / "whole")


def test_a_torn_line_of_the_journal_is_written_again(tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "a.jsonl", REPEATED)
    shards([file], tmp_path / "whole", **MANY)
    assert interrupted(lambda: shards([file], tmp_path / "s", **MANY), 20)
    with (tmp_path / "s" / "progress.journal").open("a") as stream:
        stream.write('{"split": "tra')
    with (tmp_path / "s" / "digests.bin").open("ab") as stream:
        stream.write(b"torn")
    shards([file], tmp_path / "s", **MANY)
    assert content(tmp_path / "s") == content(tmp_path / "whole")


@pytest.mark.parametrize("damage", ["no JSON", "other JSON", "no digests", "few digests"])
def test_a_damaged_journal_is_refused(tmp_path: Path, damage: str) -> None:
    file = write_jsonl(tmp_path / "a.jsonl", REPEATED)
    assert interrupted(lambda: shards([file], tmp_path / "s", **MANY), 20)
    journal, digests = tmp_path / "s" / "progress.journal", tmp_path / "s" / "digests.bin"
    match damage:
        case "no JSON":
            journal.write_text("a\nb\nc\n")
        case "other JSON":
            journal.write_text("[1]\n[2]\n")
        case "no digests":
            digests.unlink()
        case _:
            digests.write_bytes(digests.read_bytes()[:20])
    with pytest.raises(InputError, match=r"progress\.journal is damaged"):
        shards([file], tmp_path / "s", **MANY)


def test_other_inputs_options_or_tokenizers_do_not_resume(tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "a.jsonl", REPEATED)
    other = BPEConfig(vocab_size=290).train(TEXTS)
    for end in (20, 10**9):
        folder = tmp_path / f"s{end}"
        interrupted(lambda folder=folder: shards([file], folder, **MANY), end)
        for message, arguments in {
            "differ in tokenizer": (([file], folder, other), MANY),
            "differ in shard_tokens: 300, and now 5": (
                ([file], folder),
                MANY | {"shard_tokens": 5},
            ),
            "differ in inputs": (([file, file], folder), MANY),
            "differ in valid_fraction": (([file], folder, other), MANY | {"valid_fraction": 0.0}),
        }.items():
            before = content(folder)
            with pytest.raises(InputError, match=message):
                shards(*arguments[0], **arguments[1])
            assert content(folder) == before
        with file.open("a") as stream:
            stream.write('{"text": "more"}\n')
        with pytest.raises(InputError, match="differ in bytes"):
            shards([file], folder, **MANY)


def test_a_call_that_wrote_no_shard_can_be_mended(tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "a.jsonl", TEXTS)
    with pytest.raises(InputError, match=r"a\.jsonl:1: no column 'body'"):
        shards([file], tmp_path / "s", field="body")
    assert shards([file], tmp_path / "s").documents.kept == len(TEXTS)


def test_a_refused_call_makes_no_folder_for_validation(tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "a.jsonl", TEXTS)
    assert interrupted(lambda: shards([file], tmp_path / "s", shard_tokens=300), 8)
    with pytest.raises(InputError, match="differ in valid_fraction"):
        shards([file], tmp_path / "s", shard_tokens=300, valid_fraction=0.2)
    assert not (tmp_path / "s" / "valid").exists()


def test_an_index_without_its_report_is_refused(tmp_path: Path) -> None:
    shards(TEXTS, tmp_path / "s")
    index = tmp_path / "s" / INDEX
    index.write_text(index.read_text().replace('"made_from"', '"made"'))
    with pytest.raises(InputError, match=r"index\.json: damaged: KeyError\('made_from'\)"):
        shards(TEXTS, tmp_path / "s")


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    full = OSError(ENOSPC, "No space left on device")
    with (
        patch.object(split_writer.SplitWriter, "add", side_effect=full),
        pytest.raises(OSError, match="No space left") as error,
    ):
        shards(["one"], tmp_path / "s")
    assert error.value.filename == str(tmp_path / "s")


def test_shards_in_the_folder_of_their_texts_resume(tmp_path: Path) -> None:
    """What was written so far is not read as texts."""
    write_jsonl(tmp_path / "a.jsonl", REPEATED)
    shards([tmp_path], tmp_path / "whole", **MANY)
    assert interrupted(lambda: shards([tmp_path], tmp_path / "s", **MANY), 20)
    shards([tmp_path], tmp_path / "s", **MANY)
    assert content(tmp_path / "s") == content(tmp_path / "whole")


def test_shards_without_a_document_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no document is left for train: 2 read, 0 kept, 2 left"):
        shards(["", " "], tmp_path / "s")
    with pytest.raises(
        InputError, match=r"for validation: .* give a larger one than `valid_fraction"
    ):
        shards(["one"], tmp_path / "t", valid_fraction=1e-9)


def test_long_documents_in_pieces_are_those_of_the_tokenizer(tmp_path: Path) -> None:
    long = [" ".join(TEXTS * 30), "short", " ".join(TEXTS * 20)]
    shards(long, tmp_path / "s")
    opened = ShardFolder.open(tmp_path / "s")
    for i, text in enumerate(long):
        assert opened.document(i).tolist() == [2, *TOKENIZER.encode(text), 3]


def test_lower_case_and_characters_of_the_tokenizer(tmp_path: Path) -> None:
    tokenizer = CharConfig().train(["abc def"]).lowercased()
    shards(["ABC", "aXc"], tmp_path / "s", tokenizer)
    opened = ShardFolder.open(tmp_path / "s")
    assert opened.document(0).tolist() == [2, *tokenizer.encode("abc"), 3]
    assert opened.document(1).tolist() == [2, *tokenizer.encode("axc"), 3]
    assert 1 in opened.document(1).tolist()


WRITE = """
import sys
from pathlib import Path
from addnorm.data.shards.options import ShardOptions
from addnorm.data.shards.writing import write_shards
from addnorm.data.tokenizing.tokenizers import Tokenizer
if __name__ == "__main__":
    folder, workers, dedup, *files = sys.argv[1:]
    options = ShardOptions(shard_tokens=20_000, dedup=dedup, valid_fraction=0.1, unit="line")
    tokenizer = Tokenizer.load(Path("tokenizer.json"))
    write_shards(files, Path(folder), tokenizer, options, n_workers=int(workers))
"""


@pytest.mark.parametrize(
    "dedup",
    [pytest.param("exact", marks=pytest.mark.long), pytest.param("near", marks=pytest.mark.slow)],
)
def test_processes_and_kills_leave_no_trace(tmp_path: Path, dedup: str) -> None:
    """One process, two, and two that are killed at random moments write the same bytes."""
    rng = random.Random(0)
    for name in ("a.jsonl", "b.jsonl"):
        texts = [" ".join(rng.choices(TEXTS, k=rng.randint(1, 60))) for _ in range(800)]
        write_jsonl(tmp_path / name, texts + texts[:100])
    TOKENIZER.save(tmp_path / TOKENIZER_FILE)
    (tmp_path / "write.py").write_text(WRITE)

    def start(folder: str, workers: int) -> "subprocess.Popen[bytes]":
        words = ["write.py", folder, str(workers), dedup, "a.jsonl", "b.jsonl"]
        return subprocess.Popen([sys.executable, *words], cwd=tmp_path)

    begun = time.monotonic()
    assert start("one", 1).wait() == 0
    seconds = time.monotonic() - begun
    assert start("two", 2).wait() == 0
    assert content(tmp_path / "two") == content(tmp_path / "one")
    for _ in range(2):
        process = start("killed", 2)
        time.sleep(rng.uniform(0.4, 1.1) * seconds)
        process.kill()
        process.wait()
    assert start("killed", 2).wait() == 0
    assert content(tmp_path / "killed") == content(tmp_path / "one")
