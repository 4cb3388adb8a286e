"""Workflows: applications as graphs of primitives, which are optimised for each query and run as
their inputs arrive (Tan et al., "Ayo", ASPLOS 2025).

A developer joins components with ``>>`` to a template (``App``, ``Node``, ``Engine``).
``Graph.optimize`` makes the graph of a query, and the passes (``OptPass``) rewrite it.
``workflow(app)`` is the program that answers queries on a node.
"""

from quire.programs.workflow.applications import find_application
from quire.programs.workflow.engines import Engine, Profile
from quire.programs.workflow.graph_cache import GraphCache
from quire.programs.workflow.growth import Growth
from quire.programs.workflow.keys import use_keys
from quire.programs.workflow.optimizer import Graph
from quire.programs.workflow.passes import Note, OptPass, Rewritten
from quire.programs.workflow.running import run_query, workflow
from quire.programs.workflow.template import App, Node
from quire.programs.workflow.watching import PrimitiveStep, StepLog, Watcher

__all__ = [
    "App",
    "Engine",
    "Graph",
    "GraphCache",
    "Growth",
    "Node",
    "Note",
    "OptPass",
    "PrimitiveStep",
    "Profile",
    "Rewritten",
    "StepLog",
    "Watcher",
    "find_application",
    "run_query",
    "use_keys",
    "workflow",
]
