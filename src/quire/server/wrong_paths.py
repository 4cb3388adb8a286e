"""Paths that no route has: what was meant by one, and which methods a path has."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from fastapi.routing import APIRoute

_MAX_MISTYPED_CHARS = 100


def meant_by(routes: Sequence[APIRoute], path: str) -> str | None:
    """A hint for a path that is nearly that of a route: base URLs are copied from other servers,
    and paths are mistyped."""
    if path == "/":
        return "/ui shows the node in a browser, /openapi.json has all routes"
    known = {route.path for route in routes}
    plain = path.rstrip("/")
    for meant in (plain, f"/v1{plain}", plain.removeprefix("/v1")):
        if meant != path and meant in known:
            return (
                f"there is {meant}; the base URL of OpenAI clients ends with /v1, that of "
                "Anthropic's has no path"
            )
    for given in (plain, f"/v1{plain}"):
        near = get_close_matches(given[:_MAX_MISTYPED_CHARS], sorted(known), n=1, cutoff=0.9)
        if near:
            return f"there is {near[0]}"
    return None


def methods_of(routes: Sequence[APIRoute], path: str) -> list[str]:
    """The router itself lists only the methods of the first route with the path."""
    fitting = [route for route in routes if route.path_regex.fullmatch(path)]
    same = [route for route in fitting if route.path == fitting[0].path]
    return sorted({method for route in same for method in route.methods or ()})
