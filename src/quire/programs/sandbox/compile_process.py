"""``python -m quire.programs.sandbox.compile_process KIND SOURCE TARGET``: compile one file.

A process of its own, because a compiler is large code that reads what somebody has uploaded: it has
a limit of memory here and a limit of time from its caller, and a crash ends nobody else.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

from quire.core.errors import QuireError
from quire.programs.sandbox.wasm import compile_component

_MAX_MEMORY_BYTES = 8 << 30


def main(arguments: list[str]) -> int:
    kind, source, target = arguments
    resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY_BYTES, _MAX_MEMORY_BYTES))
    compilers = {"component": compile_component}
    try:
        compiled = compilers[kind](Path(source).read_bytes())
    except QuireError as exc:
        print(exc, file=sys.stderr)
        return 1
    Path(target).write_bytes(compiled)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
