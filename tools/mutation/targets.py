"""Names which modules are mutated, and which tests must notice.

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
    nothing traces, or that have constants alone, and the tests of them. ``own_sample``: how many
    mutants the group's own sample has; groups without one share that of ``--size``.
    """

    name: str
    sources: tuple[str, ...]
    tests: tuple[str, ...]
    without: tuple[str, ...] = ()
    in_children: tuple[tuple[str, str], ...] = ()
    own_sample: int | None = None

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
            "server/listening/connections.py",
            "server/answers/delivery.py",
            "server/direct_routes.py",
            "server/answers/disconnects.py",
            "server/listening/gathered_writes.py",
            "server/listening/http_protocol.py",
            "server/requests/identity.py",
            "server/listening/listener.py",
            "server/listening/open_files.py",
            "server/errors/refusals.py",
            "server/schemas/base.py",
            "server/schemas/generation.py",
            "server/security.py",
            "server/requests/strict_json.py",
            "server/programs/upload.py",
            "server/answers/write_limit.py",
        ),
        (
            "server/listening/test_server_connections.py",
            "server/test_server_constraint.py",
            "server/answers/test_server_delivery.py",
            "server/test_server_direct_routes.py",
            "server/test_server_disconnect.py",
            "server/answers/test_server_disconnects.py",
            "server/errors/test_server_errors.py",
            "server/listening/test_server_gathered_writes.py",
            "server/test_server_generation_fields.py",
            "server/requests/test_server_identity.py",
            "server/listening/test_server_open_files.py",
            "server/test_server_programs.py",
            "server/requests/test_server_sampling.py",
            "server/test_server_security.py",
            "server/requests/test_server_strict_json.py",
        ),
        in_children=(
            (
                "quire/server/schemas/generation.py",
                "tests/server/test_server_generation_fields.py",
            ),
        ),
    ),
    Group("grammars", ("node/grammars/*.py",), ("node/grammars/test_node_grammar*.py",)),
    Group(
        "runtime",
        ("programs/runtime/*.py",),
        (
            "programs/runtime/test_*.py",
            "node/programs/restarting/test_node_restarting.py",
            "node/control/test_node_images.py",
            "node/sessions/test_node_ports.py",
            "node/programs/test_node_programs.py",
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
        ("programs/workflow/**/test_*.py", "server/test_server_workflows.py"),
    ),
    Group(
        "translation",
        (
            "programs/chat/*.py",
            "server/anthropic/*.py",
            "server/chat/*.py",
            "server/completions/fields.py",
            "server/completions/format.py",
            "server/grammar_fields.py",
            "server/answers/logprobs.py",
            "server/responses/*.py",
            "server/requests/sampling.py",
            "server/schemas/anthropic.py",
            "server/schemas/chat.py",
            "server/schemas/completions.py",
            "server/schemas/messages.py",
            "server/schemas/other_names.py",
            "server/schemas/prompt_fields.py",
            "server/schemas/response_items.py",
            "server/schemas/responses.py",
            "server/schemas/tools.py",
            "server/answers/resuming/told_logprobs.py",
            "server/answers/usage.py",
        ),
        (
            "programs/chat/test_*.py",
            "server/test_server_chat_*.py",
            "server/test_server_constraint.py",
            "server/test_server_conversations.py",
            "server/test_server_dialects.py",
            "server/test_server_explicit_sessions.py",
            "server/test_server_generation_fields.py",
            "server/test_server_images.py",
            "server/test_server_langchain.py",
            "server/test_server_messages*.py",
            "server/test_server_openai_*.py",
            "server/test_server_prompt_fields.py",
            "server/test_server_response*.py",
            "server/requests/test_server_sampling.py",
            "server/answers/test_server_text_event.py",
        ),
        own_sample=40,
    ),
    Group(
        "node",
        (
            "node/*.py",
            "node/control/*.py",
            "node/documents/*.py",
            "node/encoders/*.py",
            "node/engines/*.py",
            "node/mcp/*.py",
            "node/programs/**/*.py",
            "node/search/*.py",
            "node/sessions/*.py",
            "node/supervision/*.py",
            "node/tracing/*.py",
            "node/transports/*.py",
            "node/vectors/*.py",
        ),
        (
            "node/**/test_node_*.py",
            "node/documents/test_*.py",
            "node/search/test_*.py",
            "node/vectors/test_*.py",
            "programs/services/test_*.py",
            "server/series/test_server_metrics.py",
            "server/test_server_sessions.py",
            "server/programs/test_server_traces.py",
        ),
        without=(
            "node/search/test_search_searx.py",
            "node/test_node_codeact.py",
            "node/test_node_far_imports.py",
            "node/programs/restarting/test_node_library_restarts.py",
            "node/test_node_parent_death.py",
            "node/test_node_replicas.py",
            "node/sandbox/test_node_sandbox*.py",
            "node/test_node_tensor_parallel.py",
        ),
        own_sample=40,
    ),
    Group(
        "memory",
        (
            "engine/disk_transfers.py",
            "engine/embed_slots.py",
            "engine/exchange/*.py",
            "engine/kv_cache/*.py",
            "engine/stages/memory.py",
            "engine/transfers.py",
        ),
        (
            "engine/test_engine_decode.py",
            "engine/test_engine_disk.py",
            "engine/test_engine_exchange.py",
            "engine/test_engine_layers_ahead.py",
            "engine/test_engine_memory.py",
            "engine/test_engine_reposition.py",
            "engine/test_engine_token_form.py",
            "engine/vision/test_*.py",
            "node/test_node_disk.py",
            "node/test_node_exchange.py",
            "node/sessions/test_node_kept_pages.py",
        ),
        own_sample=40,
    ),
    Group(
        "api",
        ("programs/api/*.py",),
        (
            "node/test_node_mcp.py",
            "node/sessions/test_node_ports.py",
            "node/programs/test_node_programs.py",
            "node/programs/test_node_services.py",
            "programs/api/test_*.py",
            "programs/builtin/test_*.py",
            "programs/runtime/test_*.py",
            "programs/sdk/test_*.py",
            "programs/search/test_*.py",
            "programs/services/test_*.py",
            "programs/vectors/test_*.py",
        ),
        own_sample=40,
    ),
    Group(
        "services",
        ("programs/services/*.py",),
        (
            "programs/services/test_*.py",
            "programs/api/test_api_http_stream.py",
            "programs/api/test_api_mcp.py",
        ),
        own_sample=32,
    ),
    Group(
        "client",
        ("client/*.py",),
        (
            "client/test_*.py",
            "cli/test_cli_console.py",
            "cli/programs/test_cli_conversation.py",
            "cli/test_cli_processes.py",
            "server/test_server_attach_end.py",
            "server/test_server_durable_queries.py",
            "server/test_server_microserving.py",
            "server/test_server_programs.py",
            "server/test_server_tracking.py",
        ),
        own_sample=30,
    ),
    Group(
        "deployment",
        ("cluster/deployment/*.py",),
        ("cluster/deployment/test_*.py", "cli/test_cli_cluster.py"),
        without=("cluster/deployment/test_deployment_ray.py",),
        own_sample=40,
    ),
    Group(
        "routes",
        (
            "server/programs/attachments.py",
            "server/batches/*.py",
            "server/capacity.py",
            "server/errors/errors.py",
            "server/answers/event_stream.py",
            "server/files/*.py",
            "server/answers/resuming/going_on.py",
            "server/list_page.py",
            "server/programs/live_changes.py",
            "server/microserving/*.py",
            "server/own_route.py",
            "server/requests/plain_text.py",
            "server/planning.py",
            "server/programs/events.py",
            "server/programs/records.py",
            "server/programs/query_events.py",
            "server/routes/*.py",
            "server/stop_request.py",
            "server/errors/unknown_fields.py",
            "server/errors/validation_errors.py",
            "server/answers/waiting.py",
            "server/errors/wrong_paths.py",
        ),
        ("cli/test_cli_console.py", "server/**/test_server_*.py"),
        without=(
            "server/test_server_*frameworks.py",
            "server/test_server_fuzz.py",
            "server/test_server_langchain.py",
            "server/test_server_life.py",
            "server/test_server_sandbox.py",
            "server/test_server_schemathesis.py",
            "server/test_server_ui_browser.py",
        ),
        own_sample=40,
    ),
    Group(
        "hosting",
        (
            "programs/sandbox/host/*.py",
            "programs/sandbox/module/*.py",
            "programs/sandbox/wasm/*.py",
        ),
        ("programs/sandbox/**/test_*.py",),
        without=("programs/sandbox/python/test_sandbox_python_guests.py",),
        own_sample=40,
    ),
    Group(
        "cli",
        ("cli/**/*.py",),
        ("cli/**/test_cli_*.py",),
        without=("cli/test_cli_demo.py", "cli/test_cli_run.py"),
        own_sample=40,
    ),
)
