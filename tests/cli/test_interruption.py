"""Ctrl-C ends a command that computes one long operator, and is an exception elsewhere."""

import signal
import subprocess
import sys
import time

import pytest

LONG = 'hashlib.pbkdf2_hmac("sha256", b"a", b"b", 10**8)'
"""One call of a minute that lets other threads work, and no signal handler of Python's."""

LINES = """
import hashlib, signal, time
from addnorm.cli.interruption import interruptible
with interruptible():
    for _ in range(2):
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            print("caught", flush=True)
    time.sleep(1.2)
    print("ready", flush=True)
    {then}
print("left", flush=True)
"""


def heeds_interruptions() -> None:
    """Tests may run in the background of a shell, which has its commands ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.long
@pytest.mark.parametrize("then", [LONG, "pass"])
def test_a_long_operator_does_not_hold_up_an_interruption(then: str) -> None:
    command = [sys.executable, "-c", LINES.format(then=then)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, preexec_fn=heeds_interruptions
    ) as process:
        assert process.stdout is not None
        assert [process.stdout.readline().strip() for _ in range(3)] == [
            "caught",
            "caught",
            "ready",
        ]
        start = time.monotonic()
        if then == LONG:
            time.sleep(0.2)
            process.send_signal(signal.SIGINT)
        rest, status = process.stdout.read(), process.wait()
        assert time.monotonic() - start < 10
    assert (rest, status) == (("", 130) if then == LONG else ("left\n", 0))


IGNORED = """
import signal
from addnorm.cli.interruption import interruptible
signal.signal(signal.SIGINT, signal.SIG_IGN)
with interruptible():
    signal.raise_signal(signal.SIGINT)
    print("not interrupted")
"""


def test_an_ignored_interruption_stays_ignored() -> None:
    """As of a command that a script started in the background."""
    done = subprocess.run([sys.executable, "-c", IGNORED], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "not interrupted\n"), done.stderr
