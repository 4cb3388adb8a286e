"""The compiling process ends with whoever waits for its answers."""

from __future__ import annotations

import json
import subprocess
import sys

_SLOW = """
import time
from quire.programs.sandbox.host import compile_process
compile_process._COMPILERS = {"module": lambda code: print("begun", flush=True) or time.sleep(3600)}
compile_process.main()
"""


def test_it_ends_in_the_middle_of_its_work_when_nobody_waits(tmp_path: object) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _SLOW], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdout as said:
        process.stdin.write(json.dumps(["module", __file__, f"{tmp_path}/target"]) + "\n")
        process.stdin.flush()
        assert said.readline() == "begun\n"
        process.stdin.close()
        assert said.read() == ""
    assert process.wait() == 0
