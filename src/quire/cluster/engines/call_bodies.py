"""The bodies of the calls to a node: the prompt of a request, and the fields that belong to it.

Must not know nodes, nor how a call is made.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from quire.cluster.engines.interfaces import Prompt
from quire.cluster.requests.request import Request
from quire.core.errors import InvalidArgument

_PASSED_ON = ("add_special_tokens", "cache_salt", "nvext", "priority", "session_id")
"""Fields of a completion that concern its prompt too."""

_OF_TEXT = ("add_special_tokens",)
_OF_CHAT = (
    "add_generation_prompt",
    "add_special_tokens",
    "chat_template_kwargs",
    "continue_final_message",
    "messages",
    "tools",
)
"""Fields that decide how a chat becomes tokens."""

_SHOWN = ("reasoning_effort", "verbosity")
"""Fields of a chat that templates see among their variables."""


def unread(request: Request) -> dict[str, Any]:
    """Return the fields by which a node reads the prompt of ``request``."""
    prompt = request.prompt
    names = _OF_TEXT if prompt is not None else _OF_CHAT
    asked = {name: request.fields[name] for name in names if name in request.fields}
    return _rendered(asked, request.fields) if prompt is None else {**asked, "prompt": prompt}


def _rendered(asked: dict[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``asked`` with what else of a chat's ``fields`` the template sees, and without what it
    does not."""
    if fields.get("tool_choice") == "none":
        asked.pop("tools", None)
    shown = {name: fields[name] for name in _SHOWN if fields.get(name) is not None}
    variables = asked.get("chat_template_kwargs") or {}
    if shown and isinstance(variables, dict):
        asked["chat_template_kwargs"] = {**shown, **variables}
    return asked


def _call_id() -> str:
    """Return an id by which the node recognises a repeated call, so that it is done once."""
    return f"call-{uuid.uuid4().hex}"


def shared(request: Request, prompt: Prompt | None) -> dict[str, Any]:
    """Return the fields that the calls about K and V have in common."""
    told = {name: request.fields[name] for name in _PASSED_ON if name in request.fields}
    if request.has_images:  # images are no tokens: every engine renders the chat
        return {**told, **unread(request), "request_id": _call_id()}
    return {**told, "prompt": prompt_of(request, prompt), "request_id": _call_id()}


def prompt_of(request: Request, prompt: Prompt | None) -> Prompt:
    named = request.field_of_calls
    if named is not None:
        raise InvalidArgument(
            f"{named!r} belongs to the calls between engines, not to {request.path}: leave it out",
            param=named,
        )
    found = request.prompt if prompt is None else prompt
    if found is None:
        raise InvalidArgument(
            f"{request.path} has no prompt of its own to divide between engines: name its tokens "
            "(engine.prompt_tokens) or send it whole (engine.send)"
        )
    return found
