"""A sandbox process whose models have fake tokenizers: ``python sandbox_child.py MODE``.

MODE: ``serve`` · ``old`` (greets with another protocol version) · ``building`` (its component takes
for ever to build, in a process whose number is the progress that it tells).
"""

from __future__ import annotations

import sys
from pathlib import Path

from fake_node import fake_model_files

from quire.node.sandbox import sandbox_process
from quire.programs.sandbox.host import templates
from quire.programs.sandbox.python.component import OnProgress
from quire.programs.sandbox.wasm.build_processes import BuildProcesses
from quire.programs.sandbox.wasm.cache import BuildCache
from quire.programs.sandbox.wasm.compiler import Compiler


def building(
    cache: BuildCache, compiler: Compiler, processes: BuildProcesses, on_progress: OnProgress
) -> Path:
    process = processes.start((sys.executable, "-c", "import signal; signal.pause()"))
    on_progress(f"{process.pid}", 0.0)
    process.wait()
    raise AssertionError("it was killed")


if __name__ == "__main__":
    if sys.argv[1] == "old":
        import quire.core.wire

        sandbox_process.PROTOCOL_VERSION = 0  # type: ignore[misc]
        quire.core.wire.PROTOCOL_VERSION = 0  # type: ignore[misc]
    if sys.argv[1] == "building":
        templates.python_component = building
    sys.exit(sandbox_process.main(fake_model_files))
