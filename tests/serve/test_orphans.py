"""An engine ends with its web server, even in the midst of a long step."""

import socket
import subprocess
import sys
from time import monotonic

LONG_STEP = """
import os, socket, sys, time
from addnorm.serve.orphans import end_with
end_with(socket.socket(fileno=os.dup(0)))
print("computing", flush=True)
time.sleep(60)
"""


def test_an_engine_in_a_long_step_ends_when_its_web_server_has_been_killed() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        engine = subprocess.Popen(
            [sys.executable, "-c", LONG_STEP], stdin=theirs.fileno(), stdout=subprocess.PIPE
        )
    with engine:
        assert engine.stdout is not None
        assert engine.stdout.readline() == b"computing\n"
        ours.send(b"a message that it does not read")
        assert engine.poll() is None
        ours.close()
        start = monotonic()
        assert engine.wait(timeout=20) == 1
        assert monotonic() - start < 2
