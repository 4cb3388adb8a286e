"""Compiles in a separate process, within a time limit; see ``compile_process``.

Owns that process, which is kept for the next file and replaced after a timeout or crash.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from quire.core.errors import ConfigError, InvalidArgument
from quire.core.scratch import ScratchDirectory
from quire.programs.sandbox.wasm.build_processes import BuildProcesses
from quire.programs.sandbox.wasm.cache import BuildCache

COMPILE_COMMAND = (sys.executable, "-P", "-m", "quire.programs.sandbox.host.compile_process")


class Compiler:
    """Compiles files in a process that ``command`` starts, through ``processes``. ``compile`` may
    be called from any thread; it blocks, and compiles one file at a time."""

    def __init__(
        self,
        cache: BuildCache,
        command: Sequence[str] = COMPILE_COMMAND,
        processes: BuildProcesses | None = None,
    ) -> None:
        self._cache = cache
        self._processes = processes or BuildProcesses()
        self._command = command
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def compile(self, kind: str, source: Path, name: str, limit_s: float) -> Path:
        """Compile ``source`` (a ``component`` or a ``module``) into the cache as ``name``.

        Raises:
            InvalidArgument: it does not compile, or not within ``limit_s``.
            ConfigError: the process cannot be started, or has crashed.
            Draining: builds were ended.
        """
        with self._lock, ScratchDirectory("compile") as folder:
            target = folder.path / "compiled"
            reason = self._ask([kind, str(source), str(target)], limit_s)
            if reason is not None:
                raise InvalidArgument(reason)
            return self._cache.put(name, target.read_bytes())

    def close(self) -> None:
        with self._lock:
            self._end()

    def _ask(self, job: list[str], limit_s: float) -> Any:
        process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        late = threading.Event()

        def kill() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(limit_s, kill)
        timer.start()
        try:
            process.stdin.write(json.dumps(job) + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except OSError:
            answer = ""
        finally:
            timer.cancel()
        if answer:
            return json.loads(answer)
        self._end()
        if late.is_set():
            raise InvalidArgument(
                f"compiling took more than {limit_s:g} s and was stopped: make the program smaller"
            )
        raise ConfigError(
            f"the compiler has crashed (status {process.returncode}): push the program again; if "
            "it crashes again, check the machine's memory"
        )

    def _start(self) -> subprocess.Popen[str]:
        self._process = self._processes.start(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        self._processes.ended(process)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
