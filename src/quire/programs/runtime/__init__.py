"""Runs programs: the handle of a running program, hosting on an event loop, the native runtime."""

from quire.programs.runtime.event_port import EventPort, Models
from quire.programs.runtime.host import ProgramHost
from quire.programs.runtime.native import NativeConfig, NativeRuntime
from quire.programs.runtime.running import Connect, ProgramState, RunningProgram, Runtime
from quire.programs.runtime.watchdog import BlockedLoop

__all__ = [
    "BlockedLoop",
    "Connect",
    "EventPort",
    "Models",
    "NativeConfig",
    "NativeRuntime",
    "ProgramHost",
    "ProgramState",
    "RunningProgram",
    "Runtime",
]
