"""`metrics.jsonl`: readable during training, and truncated on resume."""

import json
from pathlib import Path

import pytest

from addnorm.training.loggers import Journal


def test_lines_are_written_immediately(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "new" / "folder")
    journal.write(1, {"loss": 0.1 + 0.2})
    journal.write(2, {"valid_bleu": 3})
    lines = journal.file.read_bytes()
    assert lines.endswith(b"\n")
    assert [json.loads(line) for line in lines.splitlines()] == [
        {"step": 1, "loss": 0.1 + 0.2},
        {"step": 2, "valid_bleu": 3},
    ]


def test_cut_restores_the_length_of_flush(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    assert journal.flush() == 0
    journal.write(1, {"loss": 1.0})
    length = journal.flush()
    assert length == journal.file.stat().st_size
    before = journal.file.read_bytes()
    journal.write(2, {"loss": 2.0})
    journal.cut(length)
    assert journal.file.read_bytes() == before
    journal.write(3, {"loss": 3.0})
    assert journal.file.read_bytes() == before + b'{"step": 3, "loss": 3.0}\n'


def test_another_journal_appends_to_the_first(tmp_path: Path) -> None:
    Journal(tmp_path).write(1, {})
    second = Journal(tmp_path)
    second.write(2, {})
    assert second.file.read_bytes() == b'{"step": 1}\n{"step": 2}\n'


@pytest.mark.parametrize("before", [b"", b'{"step": 1}\n'])
def test_cut_never_extends_the_file(tmp_path: Path, before: bytes) -> None:
    """Where someone removed the journal, no zeros fill the gap."""
    journal = Journal(tmp_path)
    journal.file.write_bytes(before)
    journal.cut(100)
    assert journal.file.read_bytes() == before


def test_no_file_stays_open(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.write(1, {})
    journal.flush()
    descriptors = Path("/proc/self/fd")
    if not descriptors.is_dir():
        pytest.skip("this system does not list open files")
    targets = [d.readlink() for d in descriptors.iterdir() if d.is_symlink()]
    assert journal.file.resolve() not in targets
