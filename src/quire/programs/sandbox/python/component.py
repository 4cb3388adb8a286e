"""The Python component: CPython and our modules as one WebAssembly file, built at its first use.

Two child processes do the work, each within a time limit: componentize-py combines the interpreter
and the modules and executes their imports; then the result is compiled for this machine. Both
results are cached under names that depend on their inputs.
"""

from __future__ import annotations

import hashlib
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from quire.core.errors import ConfigError
from quire.core.scratch import ScratchDirectory
from quire.programs.sandbox.messages import GUEST_PROTOCOL
from quire.programs.sandbox.python.bundle import (
    APP_MODULE,
    WORLD,
    bundle_digest,
    component_files,
    world,
)
from quire.programs.sandbox.python.memory_image import with_immortal_objects
from quire.programs.sandbox.python.memory_size import with_memory_size
from quire.programs.sandbox.wasm.build_processes import BuildProcesses
from quire.programs.sandbox.wasm.cache import BuildCache
from quire.programs.sandbox.wasm.compiler import Compiler
from quire.programs.sandbox.wasm.engine import engine_version

logger = logging.getLogger(__name__)

OnProgress = Callable[[str, float], None]

BUILD_LIMIT_S = 300.0
COMPILE_LIMIT_S = 300.0
_KEPT_FILES = 6
"""The component and machine code of this release and two others."""
_COMPONENTIZE = """
import sys
from quire.core.parent_process import die_with_parent
die_with_parent(int(sys.argv.pop(1)))
import componentize_py
sys.exit(componentize_py.script())
"""


def python_component(
    cache: BuildCache, compiler: Compiler, processes: BuildProcesses, on_progress: OnProgress
) -> Path:
    """The compiled component, from the cache or built now by ``processes``. Blocks.

    Raises:
        ConfigError: a package is missing, or a build failed; the message includes its last output.
        Draining: builds were ended.
    """
    name = _component_name()
    compiled_name = f"{name}-{_short(engine_version())}.cwasm"
    if (compiled := cache.find(compiled_name)) is not None:
        return compiled
    with cache.building(name):
        if (compiled := cache.find(compiled_name)) is not None:
            return compiled
        logger.info(
            "building the Python sandbox, once per release: this takes a minute on an idle machine"
        )
        on_progress("building the Python sandbox, step 1 of 2 (once per release)", 0.0)
        component = cache.find(f"{name}.wasm") or _build(cache, processes, f"{name}.wasm")
        on_progress("compiling the Python sandbox, step 2 of 2 (once per release)", 0.6)
        compiled = compiler.compile("component", component, compiled_name, COMPILE_LIMIT_S)
        cache.keep_newest("python-", _KEPT_FILES)
        return compiled


def _component_name() -> str:
    try:
        builder = version("componentize-py")
    except PackageNotFoundError as exc:
        raise ConfigError(
            "sandboxed Python programs need componentize-py, which is not installed: "
            "pip install 'quire[sandbox]'"
        ) from exc
    return f"python-{_short(f'{bundle_digest()} {builder} {GUEST_PROTOCOL}')}"


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _build(cache: BuildCache, processes: BuildProcesses, name: str) -> Path:
    with ScratchDirectory("component") as folder:
        root = folder.path
        for path, content in component_files().items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(content)
        wit, target = root / WORLD, root / "out.wasm"
        wit.write_bytes(world())
        _run(
            [sys.executable, "-P", "-c", _COMPONENTIZE, str(os.getpid()),
             "-q", "-d", str(wit), "-w", "guest",
             "componentize", APP_MODULE, "-p", str(root), "-o", str(target)],
            BUILD_LIMIT_S,
            processes,
        )  # fmt: skip
        built = with_memory_size(with_immortal_objects(target.read_bytes()))
        return cache.put(name, built)


def _run(command: list[str], limit_s: float, processes: BuildProcesses) -> None:
    process = processes.start(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        said, complained = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired as exc:
        raise ConfigError(
            f"building the sandbox took more than {limit_s:g} s and was stopped: start it again "
            "when the machine is less busy"
        ) from exc
    finally:
        process.kill()
        process.communicate()
        processes.ended(process)
    if process.returncode:
        words = (complained or said).partition("\nStack backtrace:")[0].strip()[-2000:]
        raise ConfigError(f"building the sandbox failed with status {process.returncode}:\n{words}")
