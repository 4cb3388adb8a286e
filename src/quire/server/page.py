"""The files of the page ``/ui``, and their headers.

Owns which files there are: those of ``quire/assets/ui``, read once. The page gets its data from the
API, like any other client.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import PurePosixPath

PAGE_PATH = "/ui"
"""The path of the page; its other files are below it. They need no API key: the data that they show
does."""

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
"""Nothing is loaded from elsewhere, and no text can become markup or script."""

_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}


@dataclass(frozen=True, slots=True)
class PageFile:
    """A file of the page. ``headers``: without the length of the body."""

    body: bytes
    media_type: str
    headers: Mapping[str, str]

    @property
    def etag(self) -> str:
        return self.headers["etag"]


def is_of_page(path: str) -> bool:
    """Return whether ``path`` is that of the page or of a file below it, which need not exist."""
    return path == PAGE_PATH or path.startswith(f"{PAGE_PATH}/")


def read_page_files() -> dict[str, PageFile]:
    """Return all files by name."""
    folder = files("quire") / "assets" / "ui"
    return {one.name: _page_file(one.name, one.read_bytes()) for one in folder.iterdir()}


def _page_file(name: str, body: bytes) -> PageFile:
    etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    media_type = _KINDS[PurePosixPath(name).suffix]
    return PageFile(body, media_type, {**_HEADERS, "etag": etag})
