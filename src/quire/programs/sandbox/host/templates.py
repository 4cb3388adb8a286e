"""The templates of guests: the Python component, and modules that were compiled here.

Owns the warm Python instances and the modules' compiled code in memory (the cache has it on disk).
Belongs to one loop; compiling runs in child processes.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from pathlib import Path

from quire.core.errors import ErrorRecord, InvalidArgument, QuireError
from quire.programs.sandbox.answers import Answers
from quire.programs.sandbox.host.hosted import GuestRunner
from quire.programs.sandbox.host.machine_memory import MachineRoom
from quire.programs.sandbox.host.runners import Runners
from quire.programs.sandbox.limits import GuestLimits
from quire.programs.sandbox.messages import Inspected
from quire.programs.sandbox.module.abi import MANIFEST_EXPORT
from quire.programs.sandbox.module.runner import REQUIRED_EXPORTS, ModuleRunner
from quire.programs.sandbox.module.wasm_module import ModuleTemplate
from quire.programs.sandbox.program import code_digest, is_module
from quire.programs.sandbox.python.component import OnProgress, python_component
from quire.programs.sandbox.python.runner import PythonRunner
from quire.programs.sandbox.wasm.build_processes import BuildProcesses
from quire.programs.sandbox.wasm.cache import BuildCache
from quire.programs.sandbox.wasm.compiler import Compiler
from quire.programs.sandbox.wasm.engine import (
    GuestTrapped,
    PythonTemplate,
    WasmEngine,
    engine_version,
)

logger = logging.getLogger(__name__)

MODULE_COMPILE_LIMIT_S = 60.0
SOURCE_COMPILE_LIMIT_S = 1.0
_SOURCE_MEMORY_BYTES = 256 << 20
_KEPT_COMPILED_CHARS = 64 << 20
_MAX_LOADED = 64
_KEPT_MODULES = 1024


class Templates:
    """``build`` creates what is missing; it blocks and may be called on any thread. Then ``load``
    loads it. ``abandon`` ends builds and may be called on any thread."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        cache: BuildCache,
        num_warm: int,
        room: MachineRoom | None = None,
    ) -> None:
        self._loop = loop
        self._cache = cache
        self._processes = BuildProcesses()
        self._compiler = Compiler(cache, processes=self._processes)
        self._num_warm = num_warm
        self._room = room or MachineRoom()
        self._engine = WasmEngine()
        self._modules: OrderedDict[str, ModuleTemplate] = OrderedDict()
        self._compiling: dict[str, asyncio.Task[ModuleTemplate]] = {}
        self._compiled = CompiledSources()
        self._runners: Runners | None = None

    def build(self, on_progress: OnProgress) -> Path:
        """The Python component, from the cache or built now.

        Raises:
            ConfigError: it cannot be built here.
            Draining: ``abandon`` was called.
        """
        return python_component(self._cache, self._compiler, self._processes, on_progress)

    def load(self, component: Path) -> None:
        """Load the result of ``build``."""
        template = PythonTemplate(self._engine, component)
        self._runners = Runners(self._loop, template, self._num_warm, self._room)

    def abandon(self) -> None:
        """End running builds with an error; no further build starts."""
        self._processes.end()

    def close(self) -> None:
        """Free everything. Every runner must have been closed."""
        self.abandon()
        if self._runners is not None:
            self._runners.close()
        self._engine.close()
        self._compiler.close()

    def is_ready(self, code: bytes, digest: str) -> bool:
        """Whether ``runner_of`` may be called; else call ``prepare`` first. ``digest``: that of
        ``code``, passed because hashing a module takes long."""
        return digest in (self._modules if is_module(code) else self._compiled)

    async def prepare(self, code: bytes) -> None:
        """Compile a module or a source once. A source that does not compile reports its error when
        it is launched.

        Raises:
            InvalidArgument: not a valid module, or one without the exports of the guest ABI.
        """
        digest = code_digest(code)
        if self.is_ready(code, digest):
            return
        if not is_module(code):
            self._compiled.put(digest, self._compile_source(code))
            return
        if digest not in self._compiling:
            self._compiling[digest] = self._loop.create_task(self._compile(code, digest))
        await asyncio.shield(self._compiling[digest])

    async def _compile(self, code: bytes, digest: str) -> ModuleTemplate:
        version = hashlib.sha256(engine_version().encode()).hexdigest()[:24]
        name = f"module-{digest[:40]}-{version}.cwasm"
        try:
            compiled = self._cache.find(name)
            if compiled is None:
                compiled = await asyncio.to_thread(self._compile_file, code, digest, name)
            template = ModuleTemplate(self._engine, compiled, REQUIRED_EXPORTS)
        finally:
            del self._compiling[digest]
        self._modules[digest] = template
        if len(self._modules) > _MAX_LOADED:
            self._modules.popitem(last=False)
        return template

    def _compile_file(self, code: bytes, digest: str, name: str) -> Path:
        source = self._cache.put(f"module-{digest}.wasm", code)
        try:
            return self._compiler.compile("module", source, name, MODULE_COMPILE_LIMIT_S)
        finally:
            source.unlink(missing_ok=True)
            self._cache.keep_newest("module-", _KEPT_MODULES)

    def _compile_source(self, code: bytes) -> str:
        """Compile in a guest in which none of the source runs, so that the result is valid for
        every tenant that uploads this source. Return an empty text if it takes too much; each
        launch then compiles within its own limits."""
        assert self._runners is not None, "load() comes first"
        guest = self._runners.take(_SOURCE_MEMORY_BYTES)
        try:
            return guest.compile(source_text(code), SOURCE_COMPILE_LIMIT_S)
        except GuestTrapped:
            return ""
        finally:
            guest.close()

    def runner_of(self, code: bytes, digest: str, limits: GuestLimits) -> Callable[[], GuestRunner]:
        """A function that creates a fresh instance for a program, which must be ready. It may be
        called later; it keeps the template alive."""
        if is_module(code):
            return partial(self._module_runner, self._module(digest), limits)
        return partial(self._python_runner, code, digest, limits)

    async def inspect(self, code: bytes, limits: GuestLimits) -> Inspected:
        """The manifest of ``code``, or why it is not a program."""
        try:
            await self.prepare(code)
            return self._inspect(code, limits)
        except GuestTrapped as exc:
            why = "takes too long to load" if exc.interrupted else f"breaks the rules: {exc}"
            return Inspected(error=_refusal(f"the uploaded program {why}"))
        except QuireError as exc:
            return Inspected(error=exc.record())

    def _inspect(self, code: bytes, limits: GuestLimits) -> Inspected:
        turn_s = limits.turn_ms / 1000
        silent = Answers({}, lambda level, text, fields: None)
        if not is_module(code):
            python = self._python_runner(code, code_digest(code), limits)
            python.attach(silent)
            try:
                return python.inspect(turn_s)
            finally:
                python.close()
        digest = code_digest(code)
        template = self._module(digest)
        has_manifest = MANIFEST_EXPORT in template.exports
        module = self._module_runner(template, limits)
        try:
            name = f"module-{digest[:8]}"
            return Inspected(manifest=module.manifest(name, turn_s, has_manifest=has_manifest))
        finally:
            module.close()

    def _python_runner(self, code: bytes, digest: str, limits: GuestLimits) -> PythonRunner:
        assert self._runners is not None, "load() comes first"
        guest = self._runners.take(limits.memory_bytes)
        compiled = self._compiled.get(digest)
        return PythonRunner(guest, source_text(code), compiled, limits.turn_bytes)

    def _module(self, digest: str) -> ModuleTemplate:
        self._modules.move_to_end(digest)
        return self._modules[digest]

    def _module_runner(self, template: ModuleTemplate, limits: GuestLimits) -> ModuleRunner:
        self._room.check()
        return ModuleRunner(template.new_guest(limits.memory_bytes), limits.turn_bytes)


class CompiledSources:
    """Compiled sources by digest, as text; the least recently used is dropped first."""

    def __init__(self, max_chars: int = _KEPT_COMPILED_CHARS) -> None:
        self._max_chars = max_chars
        self._num_chars = 0
        self._texts: OrderedDict[str, str] = OrderedDict()

    def __contains__(self, digest: object) -> bool:
        return digest in self._texts

    def get(self, digest: str) -> str:
        """The compiled text; empty if it is not known (any more): the source is then compiled
        again."""
        if digest not in self._texts:
            return ""
        self._texts.move_to_end(digest)
        return self._texts[digest]

    def put(self, digest: str, text: str) -> None:
        self._texts[digest] = text
        self._num_chars += len(digest) + len(text)
        while self._num_chars > self._max_chars and len(self._texts) > 1:
            old, dropped = self._texts.popitem(last=False)
            self._num_chars -= len(old) + len(dropped)


def source_text(code: bytes) -> str:
    return code.decode("utf-8", "replace")


def _refusal(text: str) -> ErrorRecord:
    return InvalidArgument(text).record()
