"""Workflows of other frameworks as applications: Haystack's pipelines and LangGraph's graphs."""

from quire.programs.workflow.imports.haystack import import_pipelines
from quire.programs.workflow.imports.langgraph import import_state_graph, is_state_graph

__all__ = ["import_pipelines", "import_state_graph", "is_state_graph"]
