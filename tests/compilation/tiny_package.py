"""A small package, and its import in a fresh process."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

from quire.compilation import Scope

SOURCES = {
    "__init__.py": "",
    "base/__init__.py": "",
    "base/limits.py": """
        from dataclasses import dataclass

        @dataclass(frozen=True, slots=True)
        class Limits:
            largest: int
    """,
    "outer/__init__.py": "",
    "outer/doubling.py": """
        from __future__ import annotations

        from tiny.base.limits import Limits
        from tiny.inner.counting import Counter

        def doubled(number: int) -> int:
            counter = Counter(Limits(2 * number))
            counter.add(number)
            return counter.add(number)
    """,
    "outer/leaving.py": """
        def nothing() -> int:
            return 0
    """,
    "inner/__init__.py": "from tiny.inner.counting import Counter\n",
    "inner/counting.py": """
        from __future__ import annotations

        from tiny.base.limits import Limits

        class Counter:
            def __init__(self, limits: Limits) -> None:
                self.limits = limits
                self.number = 0

            def add(self, number: int) -> int:
                self.number = min(self.limits.largest, self.number + number)
                return self.number
    """,
    "inner/summing.py": """
        from __future__ import annotations

        from collections.abc import Sequence

        from tiny.base.limits import Limits
        from tiny.inner.counting import Counter

        def total(numbers: Sequence[int], largest: int) -> int:
            counter = Counter(Limits(largest))
            for number in numbers:
                counter.add(number)
            return counter.number
    """,
}

_USE = """
import json, sys
from pathlib import Path
from quire.compilation import Scope, in_use, use_compiled
folder, directory, before = sys.argv[1:]
sys.path.insert(0, str(Path(folder).parent))
scope = Scope("tiny", Path(folder), "inner", ("base", "outer"), ("outer/doubling.py",))
unknown = in_use(scope)
if before:
    __import__(before)
finder = use_compiled(Path(directory), scope)
from tiny.inner import counting, summing
from tiny.outer import doubling, leaving
print(json.dumps({
    "unknown": unknown,
    "in_use": in_use(scope),
    "refusal": finder.refusal,
    "total": summing.total([1, 2, 3], 5),
    "doubled": doubling.doubled(4) + leaving.nothing(),
    "files": [one.__file__ for one in (counting, summing, doubling, leaving)],
}))
"""


@dataclass(frozen=True, slots=True)
class Used:
    """What the process printed on stdout, and all of its stderr."""

    facts: dict[str, Any]
    warning: str


def write_package(folder: Path) -> Scope:
    for name, text in SOURCES.items():
        path = folder / "tiny" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text), encoding="utf-8")
    return Scope("tiny", folder / "tiny", "inner", ("base", "outer"), ("outer/doubling.py",))


def use(scope: Scope, directory: Path, before: str = "") -> Used:
    """Import ``scope`` in a process of its own; ``before`` is run first."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", _USE, str(scope.folder), str(directory), before],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return Used(json.loads(done.stdout), done.stderr)
