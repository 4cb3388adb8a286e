"""The shipped applications and those of a developer's file, by name."""

from quire.programs.workflow.applications.advanced_rag import advanced_rag
from quire.programs.workflow.applications.agent import agent
from quire.programs.workflow.applications.contextual_retrieval import contextual_retrieval
from quire.programs.workflow.applications.loading import (
    APPLICATIONS,
    find_application,
    find_applications,
)
from quire.programs.workflow.applications.naive_rag import naive_rag
from quire.programs.workflow.applications.search_generation import search_generation
from quire.programs.workflow.applications.served import Applications, ServedApplication

__all__ = [
    "APPLICATIONS",
    "Applications",
    "ServedApplication",
    "advanced_rag",
    "agent",
    "contextual_retrieval",
    "find_application",
    "find_applications",
    "naive_rag",
    "search_generation",
]
