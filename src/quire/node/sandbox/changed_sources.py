"""Whether this release's files were changed under the node that runs.

A process that the node starts later runs the files as they are then: one that was made for others
may speak another way than the node, or not start at all.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

PACKAGE = Path(str(files("quire")))


def changed_source(since_s: float, package: Path = PACKAGE) -> Path | None:
    """A Python file below ``package`` that is younger than ``since_s`` (Unix time): the youngest.
    ``None``: there is none. Looks at each file, so it is for when something went wrong."""
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
    """To follow what went wrong: empty, or the likely cause and its remedy."""
    changed = changed_source(since_s, package)
    if changed is None:
        return ""
    name = changed.relative_to(package.parent)
    return (
        f"; {name} was changed after this node started, so its processes no longer run the same "
        "release: restart the node"
    )
