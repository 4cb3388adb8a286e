"""What is mutated, and which tests are to notice.

A group is a part of the package with the tests that are about it. Of these a mutant meets those
that run its line (``coverage_map``), the quickest first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCE = ROOT / "src"
WORK = ROOT / "build" / "mutation"


@dataclass(frozen=True, slots=True)
class Group:
    """``sources`` and ``tests`` are globs below ``src/quire`` and ``tests``."""

    name: str
    sources: tuple[str, ...]
    tests: tuple[str, ...]

    def source_files(self) -> Iterator[Path]:
        yield from _files(SOURCE / "quire", self.sources)

    def test_files(self) -> Iterator[Path]:
        yield from _files(ROOT / "tests", self.tests)


def _files(root: Path, globs: tuple[str, ...]) -> Iterator[Path]:
    for glob in globs:
        found = sorted(path for path in root.glob(glob) if path.suffix == ".py")
        if not found:
            raise FileNotFoundError(f"{root} has no {glob}: mend the table in {__file__}")
        yield from found


GROUPS = (
    Group(
        "sampling",
        ("engine/sampling/*.py",),
        ("engine/sampling/test_*.py", "engine/test_engine_grammar.py"),
    ),
    Group(
        "stopping",
        ("engine/stopping.py", "engine/sequence_report.py", "programs/chat/detokenize.py"),
        (
            "engine/test_engine_stopping.py",
            "engine/test_engine_decode.py",
            "engine/test_engine_report.py",
            "programs/chat/test_chat_detokenize.py",
            "programs/builtin/test_builtin_completion.py",
        ),
    ),
    Group(
        "server",
        tuple(
            f"server/{name}.py"
            for name in (
                "delivery",
                "direct_routes",
                "endless_schema",
                "gathered_writes",
                "grammar_check",
                "http_protocol",
                "identity",
                "listener",
                "open_files",
                "refusals",
                "schemas/base",
                "schemas/generation",
                "security",
                "strict_json",
                "upload",
            )
        ),
        (
            *(
                f"server/test_server_{name}.py"
                for name in (
                    "constraint",
                    "direct_routes",
                    "disconnect",
                    "errors",
                    "gathered_writes",
                    "grammar_check",
                    "identity",
                    "open_files",
                    "programs",
                    "sampling",
                    "security",
                    "strict_json",
                )
            ),
        ),
    ),
    Group(
        "runtime",
        ("programs/runtime/*.py",),
        (
            "programs/runtime/test_*.py",
            "node/test_node_restarting.py",
            "node/test_node_programs.py",
        ),
    ),
    Group("control", ("control/**/*.py",), ("control/**/test_*.py",)),
)
