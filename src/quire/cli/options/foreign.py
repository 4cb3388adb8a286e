"""Options that people bring to ``quire serve`` from vLLM, SGLang and llama.cpp.

Owns the name of each here, or why there is none. Must not know how the command is parsed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quire.core.errors import InvalidArgument

_CALLED: Mapping[str, Sequence[str]] = {
    "the first argument: quire serve MODEL": ("--model", "--model-path", "-m", "-hf", "--hf-repo"),
    "--model-name NAME, or NAME=SOURCE for each of several models": (
        "--served-model-name",
        "--alias",
    ),
    "--tensor-parallel N": ("--tensor-parallel-size", "-tp", "--tp", "--tp-size"),
    "--replicas N": ("--data-parallel-size", "-dp", "--dp", "--dp-size"),
    "--max-sequences N": ("--max-num-seqs", "--max-running-requests", "--parallel", "-np"),
    "--max-batch-tokens N": (
        "--max-num-batched-tokens",
        "--chunked-prefill-size",
        "--batch-size",
        "--ubatch-size",
    ),
    "--max-model-len N": ("--context-length", "--ctx-size", "-c"),
    "--kv-cache-bytes SIZE, a size and no fraction": (
        "--gpu-memory-utilization",
        "--kv-cache-memory-bytes",
        "--mem-fraction-static",
    ),
    "--host-cache-bytes SIZE": ("--swap-space", "--cpu-offload-gb"),
    "--page-size N": ("--block-size",),
    "--adapter NAME=DIRECTORY": ("--enable-lora", "--lora-modules", "--lora-paths", "--lora"),
    "--num-threads N": ("--threads", "-t"),
    "--policy POLICY": ("--scheduling-policy", "--schedule-policy"),
    "--log-level LEVEL": ("--uvicorn-log-level",),
    "--no-log-requests": ("--disable-log-requests", "--no-enable-log-requests"),
    "--device cuda, which takes the whole model": ("--n-gpu-layers", "--gpu-layers", "-ngl"),
    "--cors-origin ORIGIN": ("--allowed-origins",),
    "--encoder [NAME=]SOURCE for an embedding model or a cross-encoder": (
        "--task",
        "--runner",
        "--is-embedding",
        "--embedding",
        "--embeddings",
        "--reranking",
    ),
}

_NOT_NEEDED: Mapping[str, Sequence[str]] = {
    "that is always on": (
        "--enable-prefix-caching",
        "--enable-chunked-prefill",
        "--enable-prompt-tokens-details",
        "--cont-batching",
        "-cb",
        "--jinja",
    ),
    "calls and reasoning are read in the model's own format, always": (
        "--enable-auto-tool-choice",
        "--tool-call-parser",
        "--reasoning-parser",
        "--enable-reasoning",
    ),
    "it is read from the checkpoint; --weights int8 or float8 quantises another": (
        "--quantization",
        "-q",
    ),
    "code that a model brings is never run": ("--trust-remote-code",),
    "there is no pipeline parallelism": ("--pipeline-parallel-size", "-pp", "--pp-size"),
    "the server does not speculate; programs can draft and verify themselves": (
        "--speculative-config",
        "--speculative-algorithm",
        "--speculative-draft-model-path",
        "--model-draft",
    ),
}

_ADVICE = {
    **{name: f"here it is {ours}" for ours, names in _CALLED.items() for name in names},
    **{name: f"leave it out: {why}" for why, names in _NOT_NEEDED.items() for name in names},
}


def refuse_foreign(arguments: Sequence[str]) -> None:
    """Refuse options of other servers. ``arguments``: those of ``quire serve``.

    Raises:
        InvalidArgument: one is an option of another server; the message names ours.
    """
    for argument in arguments:
        if argument == "--":
            return
        name = argument.partition("=")[0]
        if name in _ADVICE:
            raise InvalidArgument(
                f"{name} is an option of other servers: {_ADVICE[name]} (all of them: "
                "'quire serve --help')"
            )
