"""Control in virtual time: the real controller over modelled engines, without waiting.

``Simulation`` runs programs given as events against one controller and any number of parallel
engines; ``LightEngine`` is an engine that computes nothing and reports modelled durations. The
tests' harness (``quire.testing``) is built on the same shell.
"""

from quire.simulation.clock import VirtualClock
from quire.simulation.control_core import ControlCore
from quire.simulation.light_engine import LightEngine, light_pool
from quire.simulation.shell import VirtualShell
from quire.simulation.simulation import Simulation
from quire.simulation.step_cost import StepCost

__all__ = [
    "ControlCore",
    "LightEngine",
    "Simulation",
    "StepCost",
    "VirtualClock",
    "VirtualShell",
    "light_pool",
]
