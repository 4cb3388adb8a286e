"""Durable queries: what a query has done outlives the node that answers it.

A query that its client has given an id keeps the outputs of its primitives in the node's data
directory. Asked again under that id it goes on from there.
"""

from quire.programs.workflow.durable.digests import digests_of_graph, digests_of_query
from quire.programs.workflow.durable.entries import Head, Planned
from quire.programs.workflow.durable.journal import Journal, QueryId
from quire.programs.workflow.durable.kept_queries import KeptQueries, QueryPlace
from quire.programs.workflow.durable.record import KeptRecord
from quire.programs.workflow.durable.service import KeptQueryService
from quire.programs.workflow.durable.stored_values import stored

__all__ = [
    "Head",
    "Journal",
    "KeptQueries",
    "KeptQueryService",
    "KeptRecord",
    "Planned",
    "QueryId",
    "QueryPlace",
    "digests_of_graph",
    "digests_of_query",
    "stored",
]
