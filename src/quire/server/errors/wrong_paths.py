"""Hints for paths that no route has: which route was meant, and which methods a path has."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches

from fastapi.routing import APIRoute

_MAX_MISTYPED_CHARS = 100

_CHAT = "there is /v1/chat/completions, for OpenAI clients with a base URL that ends with /v1"
_TEXT = "there is /v1/completions, or /v1/chat/completions for conversations"
_FIGURES = "there are /v1/models, /health and /metrics"
_BATCHES = "there are OpenAI's /v1/files and /v1/batches"
_OF_OTHER_SERVERS = {
    "/api/chat": _CHAT,
    "/api/generate": _TEXT,
    "/api/embed": "there is /v1/embeddings",
    "/api/embeddings": "there is /v1/embeddings",
    "/api/tags": "there is /v1/models",
    "/api/ps": "there is /v1/models",
    "/api/show": "there is /v1/models/{model}",
    "/api/version": "there is /version",
    "/completion": _TEXT,
    "/infill": _TEXT,
    "/generate": _TEXT,
    "/generate_stream": _TEXT,
    "/invocations": _CHAT,
    "/apply-template": "/tokenize gives the tokens of messages, /detokenize their text",
    "/props": _FIGURES,
    "/slots": "/v1/programs has what runs, /metrics the figures",
    "/get_model_info": _FIGURES,
    "/model_info": _FIGURES,
    "/get_server_info": _FIGURES,
    "/server_info": _FIGURES,
    "/load": _FIGURES,
    "/health_generate": "there are /health and /ready",
    "/flush_cache": "there is no such switch: tenants have prefix caches of their own",
    "/reset_prefix_cache": "there is no such switch: tenants have prefix caches of their own",
    "/pooling": "there are /v1/embeddings, /v1/rerank and /v1/score",
    "/classify": "there are /v1/embeddings, /v1/rerank and /v1/score",
    "/docs": "/openapi.json describes all routes, docs/reference/http.md in words",
    "/redoc": "/openapi.json describes all routes, docs/reference/http.md in words",
    "/v1/messages/batches": _BATCHES,
    "/v1/complete": "there is /v1/messages",
    "/v1/responses/compact": 'conversations are not compacted here: "truncation": "auto" drops '
    "the oldest turns of one that is too long",
    "/v1/uploads": "there is /v1/files, for files of any allowed size",
}
"""Routes of Ollama, llama.cpp, SGLang, vLLM, Text Generation Inference, OpenAI and Anthropic that
clients try, each with what to use instead."""

_OF_OTHER_KINDS = {
    "/v1/images": "no models that make images are served here",
    "/v1/audio": "no models of speech are served here",
    "/v1/realtime": "no models of speech are served here",
    "/v1/videos": "no models that make videos are served here",
    "/v1/moderations": "no moderation model is served here",
    "/v1/fine_tuning": "models are not trained here; LoRA adapters are served with --adapter",
    "/v1/vector_stores": "programs and workflows have vector stores: docs/guide/workflows.md",
    "/v1/assistants": "assistants are not served here: use /v1/responses with /v1/conversations",
    "/v1/threads": "assistants are not served here: use /v1/responses with /v1/conversations",
    "/v1/chat/completions": "chats are not stored here: /v1/responses stores its answers",
}
"""Beginnings of routes of other APIs, each with what to use instead."""

_ATTACH = re.compile("/v1/programs/[^/]+/attach")
_A_WEBSOCKET = (
    "it is a WebSocket (ws:// and wss:// URLs); /v1/programs/{program}/events has the messages of "
    "the program over HTTP, /v1/programs/{program}/signal takes messages"
)


def meant_by(routes: Sequence[APIRoute], path: str) -> str | None:
    """Return a hint for a path that is nearly that of a route: base URLs are copied from other
    servers, and paths are mistyped."""
    if path == "/":
        return "/ui shows the node in a browser, /openapi.json has all routes"
    known = {route.path for route in routes}
    plain = path.rstrip("/")
    if _ATTACH.fullmatch(plain):
        return _A_WEBSOCKET
    for meant in (plain, f"/v1{plain}", plain.removeprefix("/v1")):
        if meant != path and meant in known:
            return (
                f"there is {meant}; the base URL of OpenAI clients ends with /v1, that of "
                "Anthropic's has no path"
            )
    if (elsewhere := _of_another_server(plain)) is not None:
        return elsewhere
    for given in (plain, f"/v1{plain}"):
        near = get_close_matches(given[:_MAX_MISTYPED_CHARS], sorted(known), n=1, cutoff=0.9)
        if near:
            return f"there is {near[0]}"
    return None


def _of_another_server(path: str) -> str | None:
    if path in _OF_OTHER_SERVERS:
        return _OF_OTHER_SERVERS[path]
    for beginning, words in _OF_OTHER_KINDS.items():
        if f"{path}/".startswith(f"{beginning}/"):
            return words
    return None


def of_another_service(path: str) -> str | None:
    """Return what to use instead of a route that other servers have under a path of ours: ``{id}``
    of our route takes its last part."""
    return _OF_OTHER_SERVERS.get(path.rstrip("/"))


def methods_of(routes: Sequence[APIRoute], path: str) -> list[str]:
    """Return the methods of a path. FastAPI's router lists only those of the first route with the
    path."""
    fitting = [route for route in routes if route.path_regex.fullmatch(path)]
    same = [route for route in fitting if route.path == fitting[0].path]
    return sorted({method for route in same for method in route.methods or ()})
