"""Detects stuck processes: each one regularly reports its progress, and one that is idle ends all.

A slow process is left alone: only one whose main thread rests, in no exchange with others, is at
fault, or one that has stopped altogether.
"""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

from torch import distributed
from torch._C import _distributed_c10d  # pyright: ignore[reportPrivateUsage]

from addnorm.training.parallel.members import Member
from addnorm.training.parallel.plan import EXPLAINED, launched

LONGEST_INTERVAL = 1.0
"""The most seconds between two signs of a process."""
LEAST_WORK = 0.01
"""The share of a processor that a main thread takes at least while it works."""
GRACE = 5.0
"""Seconds in which a process that is to end does so by itself, with its own message."""
SHOWN = 16
"""The most processes whose last exchange a message names."""
REPORTED = "clock/reported"
"""Is in the store once a process has reported why all end."""


@dataclass(frozen=True)
class Signs:
    """The progress that a process regularly reports to the others."""

    signs: int = 0
    """How often it has told, which grows while it runs."""
    works: int = 0
    """How often its main thread had worked, or led the others, since the last time."""
    waits: bool = False
    """Whether its main thread is in an exchange with others."""
    left: bool = False
    """Whether it no longer takes part, as after the last step."""
    place: str = ""
    """The line that its main thread runs."""
    last: str = ""
    """Its last exchange."""


@dataclass(frozen=True)
class Verdict:
    """The process that has been idle too long (None if all wait for each other), and a message."""

    rank: int | None
    text: str


class Judge:
    """Finds the process that has been idle too long, from the reports of the watched processes."""

    def __init__(self, patience: float) -> None:
        self.patience = patience
        self._before: Mapping[int, Signs] = {}
        self._silent: dict[int, float] = {}
        self._idle: dict[int, float] = {}

    def idle(self, signs: Mapping[int, Signs], seconds: float) -> int | None:
        """The first process that is idle too long, `seconds` after the last call; None if none is.

        That is one without a sign, or one that neither works nor waits for others.
        """
        for rank, now in signs.items():
            before = self._before.get(rank, Signs(-1, -1))
            same = before.signs == now.signs
            self._silent[rank] = self._silent.get(rank, 0.0) + seconds if same else 0.0
            rests = before.works == now.works
            self._idle[rank] = self._idle.get(rank, 0.0) + seconds if rests else 0.0
        self._before = dict(signs)
        for rank, now in signs.items():
            age = self._silent[rank] if now.waits else self._idle[rank]
            if age > self.patience and not now.left:
                return rank
        return None

    def all_wait(self) -> bool:
        """Whether all processes have waited for each other too long."""
        here = {rank: now for rank, now in self._before.items() if not now.left}
        return len(here) > 1 and all(
            now.waits and self._idle[rank] > self.patience for rank, now in here.items()
        )


class Clock:
    """Exchanges progress reports between processes, and ends all if one is idle beyond `patience`.

    Rank 0 watches all, and rank 1 watches rank 0. Once the message is printed, the process at fault
    ends itself, which breaks the exchanges that others wait in, so that each ends by itself; where
    it cannot, they end themselves. If the launcher is killed, they stop as at SIGTERM. `hint` ends
    a message, as with the command that resumes a run. `has_reported` is whether this process has
    printed it.
    """

    def __init__(
        self, members: Sequence[Member], rank: int, patience: float, hint: str = ""
    ) -> None:
        self.members, self.rank, self.patience, self.hint = members, rank, patience, hint
        self.step = self.saved = 0
        self.verdict: Verdict | None = None
        self.has_reported = False
        self._watched = {0: range(len(members)), 1: range(1)}.get(rank, range(0))
        self._judge = Judge(patience)
        self._interval = min(LONGEST_INTERVAL, patience / 8)
        self._store = distributed.distributed_c10d._get_default_store().clone()  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue, reportUnknownMemberType]
        self._launcher = os.getppid()
        self._main = threading.get_ident()
        self._worked = processor_time_of(self._main)
        self._leads = 0
        self._now = Signs()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="clock", daemon=True)
        self._tell()

    def start(self) -> None:
        """Start to watch, once every process has reported for the first time."""
        distributed.barrier()
        self._thread.start()

    def stop(self) -> None:
        """Stop watching and reporting."""
        self._stopped.set()
        self._thread.join()
        with suppress(RuntimeError):
            self._now = replace(self._now, left=True)
            self._tell()

    @contextmanager
    def leading(self) -> Generator[None]:
        """In this context, the others wait for this process without a time limit."""
        self._leads += 1
        try:
            yield
        finally:
            self._leads -= 1

    def judged(self) -> Verdict | None:
        """The verdict; None if there is none so far."""
        if self.verdict is None:
            with suppress(RuntimeError):
                self.verdict = self._given()
        return self.verdict

    def _run(self) -> None:
        with suppress(RuntimeError):  # the store has ended, and with it the process that holds it
            self._watch()
        while not self._stopped.wait(self._interval):
            self._stop_if_alone()

    def _watch(self) -> None:
        """Tell of this process and look at others, until one is idle too long."""
        before = time.monotonic()
        while not self._stopped.wait(self._interval):
            self._stop_if_alone()
            now = time.monotonic()
            # More than that passes only where this process was stopped too.
            seconds = min(now - before, 2 * self._interval)
            self._look(now - before)
            before = now
            self._tell()
            if (verdict := self._given() or self._found(seconds)) is not None:
                self._end(verdict)
                return

    def _stop_if_alone(self) -> None:
        """Ask this process to stop, once, where its launcher is gone."""
        if os.getppid() != self._launcher:
            self._launcher = os.getppid()
            os.kill(os.getpid(), signal.SIGTERM)

    def _look(self, seconds: float) -> None:
        """Record whether this process's main thread works or waits."""
        worked = processor_time_of(self._main)
        works = self._leads > 0 or worked - self._worked > LEAST_WORK * seconds
        self._worked = worked
        inner, waits = place_of(self._main)
        self._now = replace(
            self._now,
            signs=self._now.signs + 1,
            works=self._now.works + works,
            waits=waits,
            place=inner,
            last=last_exchange(waits=waits),
        )

    def _tell(self) -> None:
        self._store.set(f"clock/{self.rank}", json.dumps(asdict(self._now)))

    def _given(self) -> Verdict | None:
        if not self._store.check(["clock/verdict"]):
            return None
        return Verdict(**json.loads(self._store.get("clock/verdict")))

    def _found(self, seconds: float) -> Verdict | None:
        """The verdict on the watched processes; None if none is idle too long."""
        if not self._watched:
            return None
        signs = self._signs_of(self._watched)
        rank = self._judge.idle(signs, seconds)
        if rank is None and not (self.rank == 0 and self._judge.all_wait()):
            return None
        verdict = Verdict(rank, self._described(rank))
        self._store.set("clock/verdict", json.dumps(asdict(verdict)))
        return verdict

    def _signs_of(self, ranks: Sequence[int]) -> dict[int, Signs]:
        texts = self._store.multi_get([f"clock/{rank}" for rank in ranks])
        return {rank: Signs(**json.loads(text)) for rank, text in zip(ranks, texts, strict=True)}

    def _described(self, rank: int | None) -> str:
        """Return a message on the idle process, or on all, with the last exchange of each."""
        signs = self._signs_of(range(len(self.members)))
        lasts = [f"rank {r} {now.last}" for r, now in [*signs.items()][:SHOWN] if now.last]
        if len(signs) > SHOWN:
            lasts.append(f"and {len(signs) - SHOWN} more")
        exchanges = f" (last exchanges: {', '.join(lasts)})" if lasts else ""
        if rank is None:
            return f"all processes waited for each other for {self.patience:g} s{exchanges}"
        at = f" at {signs[rank].place}" if signs[rank].place else ""
        return f"{self.members[rank]} did nothing for {self.patience:g} s{at}{exchanges}"

    def _end(self, verdict: Verdict) -> None:
        """End this process: at once if it is at fault, else if it does not end by itself.

        One of the others says why before that, since a launcher ends all when the first has ended.
        """
        self.verdict = verdict
        speaks = self.rank == (1 if verdict.rank == 0 else 0)
        if speaks:
            self._report(verdict, aloud=True)
        elif self.rank == verdict.rank:
            if not self._reported_by_other():
                self._report(verdict, aloud=True)
            self._give_up()
        if not self._stopped.wait(GRACE if speaks else 2 * GRACE):
            if not speaks:
                self._report(verdict, aloud=False)
            self._give_up()

    def _reported_by_other(self) -> bool:
        """Wait until another process has printed the message; return whether it has."""
        try:
            self._store.wait([REPORTED], timedelta(seconds=GRACE))
        except RuntimeError:
            return False
        return True

    def _report(self, verdict: Verdict, *, aloud: bool) -> None:
        text = (
            f"addnorm: {verdict.text} during step {self.step + 1}; saved is everything up to step "
            f"{self.saved}"
        )
        line = "; ".join([text, self.hint] if self.hint else [text])
        print(line, file=sys.stderr, flush=True)
        if aloud and sys.stderr is not sys.__stderr__:  # it is a file, and the leader is silent
            print(line, file=sys.__stderr__, flush=True)
        self.has_reported = True
        self._store.set(REPORTED, "")

    def _give_up(self) -> NoReturn:
        os._exit(EXPLAINED if launched().by_us else 1)


def processor_time_of(thread: int) -> float:
    """The processor time of a thread in seconds; that of all threads if unknown."""
    if not hasattr(time, "pthread_getcpuclockid"):
        return time.process_time()
    return time.clock_gettime(time.pthread_getcpuclockid(thread))


def place_of(thread: int) -> tuple[str, bool]:
    """The line that a thread is running, and whether it is in an exchange with other processes."""
    frame = sys._current_frames().get(thread)  # pyright: ignore[reportPrivateUsage]
    place, waits = "", False
    while frame is not None:
        file = frame.f_code.co_filename
        place = place or f"{Path(file).name}:{frame.f_lineno}"
        waits |= file.startswith(EXCHANGES)
        frame = frame.f_back
    return place, waits


EXCHANGES = str(Path(distributed.__file__).parent) + os.sep
"""The folder of the functions that exchange tensors."""


def last_exchange(*, waits: bool) -> str:
    """The last exchange of this process, such as `waits in all_reduce no. 12 of data`.

    Processes that exchange the same number of times in a group of them are in the same exchange.
    """
    recorded = json.loads(_distributed_c10d._dump_fr_trace_json(True, False))  # pyright: ignore[reportAttributeAccessIssue]
    entries = recorded.get("entries", [])
    if not entries:
        return ""
    entry = max(entries, key=lambda entry: entry["record_id"])
    kind = entry["profiling_name"].removeprefix("gloo:")
    group = entry["process_group"][1].removeprefix("mesh_").replace("default_pg", "all")
    number = entry["collective_seq_id"]
    return f"{'waits in' if waits else 'ended'} {kind} no. {number} of {group}"
