"""Which options ``quire workflow`` reads for what, and refusals of those that it would not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import typer

from quire.core.errors import InvalidArgument
from quire.programs.workflow.durable import QueryId

Action = Literal["list", "run", "explain"]

_OF_A_NODE = (
    "passes", "model", "encoder", "encoder_instances", "encoder_dtype", "vector_store", "search",
    "profile", "svg", "data_dir", "mcp_servers",
)  # fmt: skip
"""Of ``run``, for a node of its own."""
_READ_BY: Mapping[Action, frozenset[str]] = {
    "list": frozenset({"action", "url", "api_key", "log_level"}),
    "run": frozenset(
        {
            "action", "name", "documents", "question", "inputs", "settings", "url", "api_key",
            "log_level", "deadline_s", "max_generated_tokens", "speculate", "query_id", "resume",
            "repeat_interrupted", *_OF_A_NODE,
        }
    ),
    "explain": frozenset(
        {
            "action", "name", "documents", "question", "inputs", "settings", "passes", "speculate",
            "svg", "profile", "log_level",
        }
    ),
}  # fmt: skip


_SHOWN: Mapping[str, str] = {"query_id": "id"}
"""Options whose names are not those of their parameters."""


def kept_as(query_id: str | None, resume: str | None, repeat: bool) -> QueryId | None:
    """As what a query is kept; None: it is not.

    Raises:
        InvalidArgument: two ids, or a permission without one.
    """
    if query_id is not None and resume not in (None, query_id):
        raise InvalidArgument(f"--id {query_id} and --resume {resume} are two queries: give one")
    key = resume if resume is not None else query_id
    if key is None:
        if repeat:
            raise InvalidArgument("--repeat-interrupted is for a query with an --id: give it too")
        return None
    return QueryId(key, resume is not None, repeat)


def refuse_unread(context: typer.Context, action: Action) -> None:
    """Refuse what the action does not read, unless it stands in the environment."""
    for name in context.params:
        source = context.get_parameter_source(name)
        if name not in _READ_BY[action] and source is not None and source.name == "COMMANDLINE":
            shown = "a name" if name == "name" else f"--{_SHOWN.get(name, name).replace('_', '-')}"
            raise InvalidArgument(f"'quire workflow {action}' does not take {shown}: leave it out")


def refuse_given(context: typer.Context, url: str) -> None:
    """Refuse what only a node of this command takes, unless it stands in the environment."""
    for name in _OF_A_NODE:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise InvalidArgument(
                f"--{name.replace('_', '-')} is for a node that 'quire workflow run' starts, and "
                f"{url} runs already: leave it out, or leave out --url (QUIRE_URL)"
            )
