"""Workflows of other frameworks as applications: Haystack's pipelines and LangGraph's graphs."""

from quire.programs.workflow.imports.haystack import import_pipelines

__all__ = ["import_pipelines"]
