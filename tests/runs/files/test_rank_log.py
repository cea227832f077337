"""The log of a process that does not lead."""

from pathlib import Path

from addnorm.runs.files.rank_log import RankLog


def test_nothing_is_written_before_the_run_has_begun(tmp_path: Path) -> None:
    log = RankLog(tmp_path, 1)
    print("early", file=log)
    assert not list(tmp_path.iterdir())
    (tmp_path / "config.json").write_text("{}")
    print("late", file=log)
    assert log.file == tmp_path / "ranks" / "1.log"
    assert log.file.read_text() == "early\nlate\n"
