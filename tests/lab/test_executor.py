"""Executors: every job is done once and its result arrives, also when a process is killed."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import Future
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from addnorm import long_work
from addnorm.errors import InputError, Interrupted
from addnorm.lab.executor import TRIES, outcomes, processes, progress_bar, workers
from addnorm.machine import cores


def doubled(n: int) -> int:
    return 2 * n


def killed_once(file: str) -> str:
    """Kill this process by surprise, the first time."""
    path = Path(file)
    if path.name.startswith("kill") and not path.exists():
        path.write_text("here")
        os.kill(os.getpid(), signal.SIGKILL)
    return path.name


def killed_always(_: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def refuses(n: int) -> int:
    if n == 2:
        raise InputError("two is refused")
    return n


class Here:
    """An executor that does the work at once."""

    def __init__(self) -> None:
        self.most = self.now = 0

    def submit(self, fn: Any, /, *args: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args))
        except Exception as error:
            future.set_exception(error)
        return future


def test_every_job_arrives_with_its_number() -> None:
    found = dict(outcomes(Here, doubled, [5, 6, 7], at_once=2))
    assert found == {0: 10, 1: 12, 2: 14}
    assert dict(outcomes(Here, doubled, [], at_once=2)) == {}


def test_outcomes_raises_the_error_of_a_job() -> None:
    with pytest.raises(InputError, match="two is refused"):
        dict(outcomes(Here, refuses, [1, 2, 3], at_once=1))


@pytest.mark.long
def test_a_killed_process_loses_nothing(tmp_path: Path) -> None:
    names = ["a", "kill-one", "b", "kill-two", "c"]
    with processes(2) as make:
        jobs = [str(tmp_path / name) for name in names]
        found = dict(outcomes(make, killed_once, jobs, at_once=2))
    assert [found[i] for i in range(5)] == names


@pytest.mark.long
def test_a_job_that_kills_its_process_each_time_is_given_up() -> None:
    message = f"lost its process {TRIES} times"
    with processes(1) as make, pytest.raises(InputError, match=message):
        dict(outcomes(make, killed_always, [0], at_once=1))


ORPHAN = """
import os, sys, time
from addnorm.lab.executor import processes
def work(file):
    open(file, "w").write(str(os.getpid()))
    time.sleep(60)
if __name__ == "__main__":
    with processes(1) as make:
        make().submit(work, sys.argv[1])
        time.sleep(60)
"""


@pytest.mark.long
def test_processes_end_with_the_one_that_started_them(tmp_path: Path) -> None:
    script, file = tmp_path / "orphan.py", tmp_path / "pid"
    script.write_text(ORPHAN)
    parent = subprocess.Popen([sys.executable, str(script), str(file)])
    deadline = time.monotonic() + 30
    while not (file.exists() and file.read_text()) and time.monotonic() < deadline:
        time.sleep(0.1)
    child = int(file.read_text())
    parent.kill()
    parent.wait()
    while _alive(child) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not _alive(child)


def _alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:1]
    except OSError:
        return False


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_a_cluster_survives_the_loss_of_a_worker(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    from addnorm.lab.executor import cluster

    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None, host="127.0.0.1"
    ) as local:
        jobs = [str(tmp_path / name) for name in ("a", "kill-one", "b", "c")]
        with cluster(local.scheduler_address) as make:
            found = dict(outcomes(make, killed_once, jobs, at_once=8))
    assert [found[i] for i in range(4)] == ["a", "kill-one", "b", "c"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_missing_scheduler_is_one_message() -> None:
    pytest.importorskip("distributed")
    import dask

    from addnorm.lab.executor import cluster

    with (
        dask.config.set({"distributed.comm.timeouts.connect": "1s"}),
        pytest.raises(InputError, match="no scheduler answers there"),
        cluster("tcp://127.0.0.1:1"),
    ):
        pass


STOPPED = """
import os, sys, time
from pathlib import Path
from addnorm.lab.executor import outcomes, processes
folder = Path(sys.argv[1])
if __name__ == "__mp_main__":
    (folder / f"starts-{os.getpid()}").touch()
    time.sleep(float(sys.argv[2]))
def work(name):
    (folder / name).touch()
    time.sleep(100)
if __name__ == "__main__":
    try:
        with processes(2) as make:
            dict(outcomes(make, work, ["one", "two"], at_once=2))
    except KeyboardInterrupt:
        sys.exit(130)
"""


@pytest.mark.long
@pytest.mark.parametrize(("seconds", "awaited"), [(0, "one"), (3, "starts-*")])
def test_ctrl_c_ends_jobs_that_run_and_those_that_are_to_begin(
    seconds: int, awaited: str, tmp_path: Path
) -> None:
    script = tmp_path / "stopped.py"
    script.write_text(STOPPED)
    command = [sys.executable, str(script), str(tmp_path), str(seconds)]
    parent = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    deadline = time.monotonic() + 60
    while not [*tmp_path.glob(awaited)] and time.monotonic() < deadline:
        time.sleep(0.05)
    begun = time.monotonic()
    os.killpg(parent.pid, signal.SIGINT)
    _, err = parent.communicate(timeout=90)
    assert (parent.returncode, err) == (130, "")
    assert time.monotonic() - begun < 60
    assert not (seconds and (tmp_path / "one").exists())


def test_a_mistake_within_a_job_has_its_name() -> None:
    with pytest.raises(InputError, match=r"^norm=b, seed 2: two is refused$"):
        list(outcomes(Here, refuses, [1, 2, 3], 1, names=["norm=a", "norm=b, seed 2", "c"]))
    with pytest.raises(InputError, match=r"^two is refused$"):
        list(outcomes(Here, refuses, [1, 2, 3], 1))


def test_never_more_threads_than_cores() -> None:
    n_cores = cores()
    assert workers(None) == n_cores
    assert workers(1, n_cores) == 1
    for processes_, threads in ((n_cores + 1, 1), (None, n_cores + 1)):
        with pytest.raises(InputError, match=f"this machine has {n_cores} cores"):
            workers(processes_, threads)
    for processes_, threads in ((0, 1), (None, 0)):
        with pytest.raises(InputError, match="must be at least 1"):
            workers(processes_, threads)
    assert workers(None, 999, "tcp://host:8786") == 64
    assert workers(3, 999, "tcp://host:8786") == 3


def test_a_stopped_bar_says_how_to_resume() -> None:
    text = StringIO()
    console = Console(file=text, width=120)
    with pytest.raises(KeyboardInterrupt), progress_bar(console, 2):
        raise Interrupted(3)
    assert "everything so far is saved, and the same command resumes it" in text.getvalue()


def test_a_log_says_how_far_the_cells_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_work, "shown_after", lambda: (n / 50 for n in range(1000)))
    text, end = StringIO(), time.monotonic() + 10
    with progress_bar(Console(file=text, width=120), 2) as watch:
        while "starting" not in text.getvalue() and time.monotonic() < end:
            time.sleep(0.005)
        watch(1, 2, "norms")
        while "norms" not in text.getvalue() and time.monotonic() < end:
            time.sleep(0.005)
    first, *_, last = text.getvalue().splitlines()
    assert first == "starting: 0 s so far"
    assert last.startswith("1/2 · norms: ")


def threads_of_libraries(_: int) -> tuple[str | None, bool]:
    return os.environ.get("OMP_NUM_THREADS"), "torch" in sys.modules


@pytest.mark.long
def test_threads_are_set_before_torch_is_imported() -> None:
    with processes(1, threads=3) as make:
        assert dict(outcomes(make, threads_of_libraries, [0], at_once=1)) == {0: ("3", False)}
