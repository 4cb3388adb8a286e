"""``python -m quire.programs.sandbox.host.compile_process``: compiles files, one after another.

A separate process, because a compiler is large code that reads untrusted input: the process has a
memory limit here and a time limit from its caller, and a crash affects nothing else. Each line of
standard input is a JSON array ``[kind, source, target]``; each is answered by a line of JSON on
standard output: ``null``, or the reason why there is no target. When standard input ends, the
caller is gone, and the process ends in the middle of its work.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
from pathlib import Path
from queue import SimpleQueue

from quire.core.errors import QuireError
from quire.programs.sandbox.module.wasm_module import compile_module
from quire.programs.sandbox.wasm.engine import compile_component

_MAX_MEMORY_BYTES = 8 << 30
_COMPILERS = {"component": compile_component, "module": compile_module}


def compile_one(kind: str, source: str, target: str) -> str | None:
    """Compile one file; return the reason if it does not compile, else None."""
    try:
        compiled = _COMPILERS[kind](Path(source).read_bytes())
    except QuireError as exc:
        return exc.message
    Path(target).write_bytes(compiled)
    return None


def _read(jobs: SimpleQueue[str]) -> None:
    for line in sys.stdin:
        jobs.put(line)
    os._exit(0)


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY_BYTES, _MAX_MEMORY_BYTES))
    jobs: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=_read, args=(jobs,), daemon=True).start()
    while line := jobs.get():
        print(json.dumps(compile_one(*json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
