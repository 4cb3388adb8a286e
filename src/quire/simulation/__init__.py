"""Control in virtual time: the real controller over engines that are modelled, and no waiting.

``Simulation`` runs programs given as events against one controller and any number of engines side
by side; ``LightEngine`` is an engine that computes nothing and says how long it would have taken.
The same shell carries the tests' harness (``quire.testing``).
"""

from quire.simulation.clock import VirtualClock
from quire.simulation.light_engine import LightEngine, StepCost, light_pool
from quire.simulation.shell import ControlCore, VirtualShell
from quire.simulation.simulation import Simulation

__all__ = [
    "ControlCore",
    "LightEngine",
    "Simulation",
    "StepCost",
    "VirtualClock",
    "VirtualShell",
    "light_pool",
]
