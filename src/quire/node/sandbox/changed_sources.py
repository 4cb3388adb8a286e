"""Detects files of this release that were changed while the node runs.

A process that the node starts later runs the changed files: these may use another protocol than the
node, or fail to start.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

PACKAGE = Path(str(files("quire")))


def changed_source(since_s: float, package: Path = PACKAGE) -> Path | None:
    """The youngest Python file below ``package`` that is younger than ``since_s`` (Unix time), or
    ``None``. Looks at each file, so call it only after an error."""
    youngest, changed = since_s, None
    for path in package.rglob("*.py"):
        try:
            found = path.stat()
        except OSError:  # it is being replaced
            continue
        # an installer may give a file its old time again, but not its inode's
        at_s = max(found.st_mtime, found.st_ctime)
        if at_s > youngest:
            youngest, changed = at_s, path
    return changed


def because_of_change(since_s: float, package: Path = PACKAGE) -> str:
    """A sentence to append to an error: empty, or the likely cause and its remedy."""
    changed = changed_source(since_s, package)
    if changed is None:
        return ""
    name = changed.relative_to(package.parent)
    return (
        f"; {name} was changed after this node started, so its processes no longer run the same "
        "release: restart the node"
    )
