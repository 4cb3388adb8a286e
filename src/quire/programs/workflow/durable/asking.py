"""A query with an id: compares the stored query with the one that is sent now."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from quire.core.errors import InvalidArgument
from quire.programs.workflow.durable.digests import digests_of_query, digests_of_template
from quire.programs.workflow.durable.entries import QueryHead
from quire.programs.workflow.durable.journal import Journal
from quire.programs.workflow.durable.stored_values import json_of
from quire.programs.workflow.template.app import App

Inputs = tuple[dict[str, Any], Mapping[str, Mapping[str, Any]]]


async def checked_inputs(
    journal: Journal,
    app: App,
    query: Mapping[str, Any] | None,
    config: Mapping[str, Mapping[str, Any]],
    read: Callable[[Mapping[str, Any]], Awaitable[dict[str, Any]]],
) -> Inputs:
    """The inputs, with the texts of documents, and the configuration of the query. Those given are
    compared with the stored ones, or stored if there are none. ``query``: None for the stored
    inputs. ``read``: reads the documents.

    Raises:
        AlreadyExists: another query has this id.
        CapacityError, QuotaExceeded: the inputs cannot be stored.
    """
    if query is None:
        journal.check(digests_of_template(app))
        return journal.inputs()
    digests = digests_of_query(app, query, config)
    if journal.head is not None:
        journal.check(digests)
        return journal.inputs()
    texts = await read(query)
    kept = json_of(app.name, "inputs", texts)
    await journal.add(QueryHead(**digests, query=kept, settings=json.dumps(config)))
    return texts, config


def check_resumed(resume: bool, query: Mapping[str, Any] | None, config: Mapping[str, Any]) -> None:
    """Check that a resumed query has no inputs and configuration, and that another one has inputs.

    Raises:
        InvalidArgument: it is not so.
    """
    if resume and (query or config):
        raise InvalidArgument(
            "a query that is resumed has its inputs and configuration: leave them out, or ask "
            "without resume",
            param="resume",
        )
    if not resume and query is None:
        raise InvalidArgument("the query's inputs are missing: give them", param="query")
