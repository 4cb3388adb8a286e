"""``Endpoint``: a model on another server, reached by HTTP as OpenAI's chat completions.

Owns what a developer may configure about it. Must not know how requests are sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from quire.core.errors import InvalidArgument

KEYS = frozenset({"base_url", "model", "api_key_env", "timeout_s", "retries", "parameters"})
"""The fields of an engine's ``config`` that describe its endpoint."""
_OWN = frozenset({"model", "messages", "stream", "stream_options", "response_format", "n"})
MAX_TIMEOUT_S, MAX_RETRIES = 3600.0, 8


@dataclass(frozen=True, slots=True)
class Endpoint:
    """``base_url``: the URL before ``/chat/completions``. ``api_key_env``: the environment variable
    that has the key; None: no key is sent. ``timeout_s``: the limit of one try, from its beginning
    to the end of the answer. ``retries``: tries after the first. ``parameters``: further fields of
    the request; a field that is None is left out."""

    base_url: str
    model: str
    api_key_env: str | None = None
    timeout_s: float = 120.0
    retries: int = 2
    parameters: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


def endpoint_of(engine: str, config: Mapping[str, Any]) -> Endpoint | None:
    """Return the endpoint of the engine ``engine``, or None if its config names none.

    Raises:
        InvalidArgument: a field that it cannot have.
    """
    if "base_url" not in config:
        for key in config.keys() & (KEYS - {"model"}):
            raise _error(engine, key, "is for a model behind HTTP: give its base_url too")
        return None
    if config.get("light"):
        raise _error(engine, "light", "chooses a model of the node: leave it out, or base_url")
    found = Endpoint(**{key: config[key] for key in KEYS & config.keys()}) if config.get(
        "model"
    ) else None  # fmt: skip
    if found is None or not isinstance(found.model, str):
        raise _error(engine, "model", "is missing: name the model that the endpoint serves")
    _check_url(engine, found.base_url)
    env = found.api_key_env
    if env is not None and not (isinstance(env, str) and env.isidentifier()):
        raise _error(engine, "api_key_env", f"is {env!r:.60}: name an environment variable; the "
                     "key itself stands nowhere in a template")  # fmt: skip
    if not _within(found.timeout_s, float, MAX_TIMEOUT_S) or found.timeout_s <= 0:
        raise _error(engine, "timeout_s", f"is {found.timeout_s!r}: give seconds above 0, at most "
                     f"{MAX_TIMEOUT_S:.0f}")  # fmt: skip
    if not _within(found.retries, int, MAX_RETRIES):
        raise _error(engine, "retries", f"is {found.retries!r}: give 0 to {MAX_RETRIES}")
    if not isinstance(found.parameters, Mapping) or _OWN & found.parameters.keys():
        own = ", ".join(sorted(_OWN))
        raise _error(
            engine, "parameters", f"are {found.parameters!r:.80}: give fields of a request, none "
            f"of {own}"
        )  # fmt: skip
    return found


def _check_url(engine: str, url: object) -> None:
    try:
        parts = urlsplit(url if isinstance(url, str) else "")
        fine = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fine = False
    if not fine or parts.query or parts.fragment or parts.username is not None:
        raise _error(engine, "base_url", f"is {url!r:.100}: give http(s)://HOST/PATH, as in "
                     "http://127.0.0.1:8000/v1, without a key or query")  # fmt: skip


def _within(value: object, kind: type, most: float) -> bool:
    is_number = isinstance(value, int | kind) and not isinstance(value, bool)
    return is_number and isfinite(value) and 0 <= value <= most  # type: ignore[arg-type, operator]


def _error(engine: str, key: str, text: str) -> InvalidArgument:
    return InvalidArgument(f"engine {engine!r}: {key} {text}", param=key)
