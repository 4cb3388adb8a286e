"""Workflows: applications as graphs of primitives, which are optimised for each query and run as
their inputs arrive (Tan et al., "Ayo", ASPLOS 2025).

A developer joins components with ``>>`` to a template (``App``, ``Node``, ``Engine``).
``Graph.optimize`` makes the graph of a query, and the passes (``OptPass``) rewrite it.
``workflow(app)`` is the program that answers queries on a node.
"""

from quire.programs.workflow.applications import find_application
from quire.programs.workflow.engines.engine import Engine, Profile
from quire.programs.workflow.execution.watching import PrimitiveStep, StepLog, Watcher
from quire.programs.workflow.optimizing.graph_cache import GraphCache
from quire.programs.workflow.passes import Note, OptPass, Rewritten
from quire.programs.workflow.query_graph import Graph
from quire.programs.workflow.running import run_query, workflow
from quire.programs.workflow.template.app import App
from quire.programs.workflow.template.growth import Growth
from quire.programs.workflow.template.keys import use_keys
from quire.programs.workflow.template.node import Node

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
