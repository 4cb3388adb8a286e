"""What processes of a node do when it is gone."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from quire.node.child_process import EXIT_NODE_GONE

CHILD = """
import io, sys, threading, time
from quire.node.child_process import answer_heartbeats, take_stdin, take_stdout
threading.Thread(target=answer_heartbeats, args=(take_stdin(), take_stdout(), lambda: 0.0)).start()
print("up", file=sys.stderr, flush=True)
threading.Event().wait()
"""


@pytest.mark.parametrize("last", ["nothing", "a heartbeat"])
def test_a_process_whose_node_is_gone_ends(last: str) -> None:
    """Be it that its lines end, or that its answer to the last of them is taken by nobody."""
    answers, answered = os.pipe()
    child = subprocess.Popen(
        [sys.executable, "-P", "-c", CHILD],
        stdin=subprocess.PIPE,
        stdout=answered,
        stderr=subprocess.PIPE,
    )
    os.close(answered)
    assert child.stdin is not None
    assert child.stderr is not None
    assert child.stderr.readline() == b"up\n"
    os.close(answers)
    if last == "nothing":
        child.stdin.close()
    else:
        child.stdin.write(b"{}\n")  # and the write end stays open, as if inherited by another
        child.stdin.flush()
    assert child.wait(30) == EXIT_NODE_GONE
    child.stdin.close()
    child.stderr.close()
