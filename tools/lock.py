"""Writes ``requirements.lock``, ``requirements-dev.lock`` and ``requirements-nixl.lock`` from the
environment that runs it.

The runtime lock is the closure of the project's dependencies, the others hold the additions of the
extras ``dev`` and ``nixl``. Versions are the installed ones; a local part (``2.13.0+cpu``) is
dropped, because the build depends on the machine and only the version on the project.
"""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
BUILD = "setuptools"
HEADER = """\
# {title}
# Made by 'make lock' from an environment whose tests pass; do not edit by hand.
"""
EXTRAS = {
    "dev": "What its tests and checks need on top.",
    "nixl": "NIXL, and what it needs beside requirements.lock; its tests are among those of CI.",
}
"""The extras with a lock, and its first line."""


def canonical(name: str) -> str:
    """Return the name under which an index knows a project (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def closure(requirements: list[str]) -> dict[str, str]:
    """Name and version of everything that ``requirements`` depend on, on this machine."""
    pins: dict[str, str] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    stack = [Requirement(text) for text in requirements]
    while stack:
        requirement = stack.pop()
        key = (canonical(requirement.name), frozenset(requirement.extras))
        if key in seen:
            continue
        seen.add(key)
        installed = distribution(requirement.name)
        pins[key[0]] = installed.version.split("+")[0]
        environments = [{"extra": extra} for extra in ("", *requirement.extras)]
        for text in installed.requires or ():
            child = Requirement(text)
            if child.marker is None or any(child.marker.evaluate(env) for env in environments):
                stack.append(child)
    return pins


def write(path: Path, title: str, pins: dict[str, str]) -> None:
    lines = [f"{name}=={version}\n" for name, version in sorted(pins.items())]
    path.write_text(HEADER.format(title=title) + "".join(lines), encoding="utf-8")
    print(f"{path.name}: {len(lines)} packages")


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    runtime = closure([*project["dependencies"], BUILD])
    write(ROOT / "requirements.lock", "What Quire needs to run, and to be installed.", runtime)
    for extra, title in EXTRAS.items():
        everything = closure([*project["dependencies"], *project["optional-dependencies"][extra]])
        added = {name: version for name, version in everything.items() if name not in runtime}
        write(ROOT / f"requirements-{extra}.lock", title, added)


if __name__ == "__main__":
    main()
