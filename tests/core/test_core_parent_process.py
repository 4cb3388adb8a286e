"""A process that asks for it ends with the one that has started it."""

from __future__ import annotations

import subprocess
import sys

_PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdin=sys.stdin, stdout=sys.stdout)
child.wait()
"""
_CHILD = """
import os, time
from quire.core.parent_process import die_with_parent
die_with_parent()
print(os.getpid(), flush=True)
time.sleep(3600)
"""


def test_it_is_killed_when_its_parent_is_killed() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT, _CHILD], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    )
    assert parent.stdout is not None
    with parent.stdout as said:
        assert int(said.readline())
        parent.kill()
        assert said.read() == b""  # the child has closed its end, too
    parent.wait()
