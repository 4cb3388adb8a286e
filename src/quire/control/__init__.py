"""The control layer: process table, resource manager, batch scheduler, policies.

An I/O-free core: ``Controller.handle(event)`` takes what happened and returns what to do. It owns
no bytes and reads no clock; the node, the tests and the simulator are shells around it.
"""

from quire.control.controller import Controller
from quire.control.feed import ProcessChanges
from quire.control.held_texts import HeldText
from quire.control.index_reader import EngineIndex, IndexPlace
from quire.control.memory.content import prompt_keys, root_key
from quire.control.policies import POLICIES
from quire.control.rows import ProcessRow
from quire.control.statistics import (
    EncoderStatistics,
    EngineStatistics,
    InstanceStatistics,
    Statistics,
)
from quire.control.waits import Wait, WaitsFor

__all__ = [
    "POLICIES",
    "Controller",
    "EncoderStatistics",
    "EngineIndex",
    "EngineStatistics",
    "HeldText",
    "IndexPlace",
    "InstanceStatistics",
    "ProcessChanges",
    "ProcessRow",
    "Statistics",
    "Wait",
    "WaitsFor",
    "prompt_keys",
    "root_key",
]
