"""Which modules are mutated, and which tests must notice.

A group is a part of the package with the tests for it. A mutant is tested with those that run its
line (``coverage_map``), the fastest first.
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
    """``sources`` and ``tests`` are globs below ``src/quire`` and ``tests``.

    Tests that build a sandbox's guest image are in no group: it contains the faulty module, so that
    every run would build one. ``without``: tests that start real processes, each of which takes as
    long as hundreds of others. ``in_children``: modules that run in child processes alone, which
    nothing traces, or that have constants alone, and the tests of them.
    """

    name: str
    sources: tuple[str, ...]
    tests: tuple[str, ...]
    without: tuple[str, ...] = ()
    in_children: tuple[tuple[str, str], ...] = ()

    def source_files(self) -> Iterator[Path]:
        yield from _files(SOURCE / "quire", self.sources)

    def test_files(self) -> Iterator[Path]:
        slow = set(_files(ROOT / "tests", self.without))
        yield from (file for file in _files(ROOT / "tests", self.tests) if file not in slow)


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
        (
            "engine/sampling/test_*.py",
            "engine/test_engine_grammar*.py",
            "engine/test_engine_json_schema.py",
        ),
        in_children=(
            (
                "quire/engine/sampling/grammar_process.py",
                "tests/engine/test_engine_grammar_hosts.py",
            ),
        ),
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
        (
            "server/connections.py",
            "server/delivery.py",
            "server/direct_routes.py",
            "server/gathered_writes.py",
            "server/http_protocol.py",
            "server/identity.py",
            "server/listener.py",
            "server/open_files.py",
            "server/refusals.py",
            "server/schemas/base.py",
            "server/schemas/generation.py",
            "server/security.py",
            "server/strict_json.py",
            "server/upload.py",
        ),
        (
            "server/test_server_connections.py",
            "server/test_server_constraint.py",
            "server/test_server_delivery.py",
            "server/test_server_direct_routes.py",
            "server/test_server_disconnect.py",
            "server/test_server_errors.py",
            "server/test_server_gathered_writes.py",
            "server/test_server_generation_fields.py",
            "server/test_server_identity.py",
            "server/test_server_open_files.py",
            "server/test_server_programs.py",
            "server/test_server_sampling.py",
            "server/test_server_security.py",
            "server/test_server_strict_json.py",
        ),
        in_children=(
            (
                "quire/server/schemas/generation.py",
                "tests/server/test_server_generation_fields.py",
            ),
        ),
    ),
    Group("grammars", ("node/grammars/*.py",), ("node/test_node_grammar*.py",)),
    Group(
        "runtime",
        ("programs/runtime/*.py",),
        (
            "programs/runtime/test_*.py",
            "node/test_node_restarting.py",
            "node/test_node_images.py",
            "node/test_node_ports.py",
            "node/test_node_programs.py",
        ),
    ),
    Group(
        "control",
        ("control/**/*.py",),
        ("control/**/test_*.py", "programs/api/test_api_scores.py"),
    ),
    Group("exchange", ("exchange/*.py",), ("exchange/test_*.py",)),
    Group(
        "cluster",
        ("cluster/**/*.py",),
        ("cluster/**/test_*.py",),
        without=(
            "cluster/test_cluster_process_faults.py",
            "cluster/test_cluster_real_nodes.py",
            "cluster/deployment/test_deployment_ray.py",
        ),
    ),
    Group(
        "workflow",
        ("programs/workflow/**/*.py",),
        ("programs/workflow/test_*.py", "server/test_server_workflows.py"),
    ),
)
