"""Durable queries: the results of a query's primitives outlive the node that answers it.

A query with an id stores the outputs of its primitives in the node's data directory. Sent again
under the same id, it continues from these outputs.
"""

from quire.programs.workflow.durable.digests import (
    digests_of_graph,
    digests_of_query,
    digests_of_template,
)
from quire.programs.workflow.durable.entries import QueryHead, QueryPlanned
from quire.programs.workflow.durable.journal import Journal, QueryId
from quire.programs.workflow.durable.kept_queries import KeptQueries, QueryPlace
from quire.programs.workflow.durable.record import KeptRecord
from quire.programs.workflow.durable.service import KeptQueryService
from quire.programs.workflow.durable.stored_values import stored

__all__ = [
    "Journal",
    "KeptQueries",
    "KeptQueryService",
    "KeptRecord",
    "QueryHead",
    "QueryId",
    "QueryPlace",
    "QueryPlanned",
    "digests_of_graph",
    "digests_of_query",
    "digests_of_template",
    "stored",
]
