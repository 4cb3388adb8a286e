"""The options that several commands share: name, environment variable, help.

Only this module and the other option modules name environment variables (``QUIRE_...``); the rest
of Quire receives the values as constructor arguments.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from quire.cli.options.sizes import size_or_nothing, size_value
from quire.core.config import DEFAULT_CACHE_BYTES, EngineConfig
from quire.core.ids import ModelId
from quire.core.sizes import format_size

DTypeOption = Literal["auto", "float32", "bfloat16", "float16"]
BackendOption = Literal["auto", "cpu", "cuda", "torch"]
WeightsOption = Literal["auto", "float8", "int8"]

DEFAULT_URL = "http://127.0.0.1:8000"

_DEFAULTS = EngineConfig(source="", name=ModelId(""))

_ENGINE = "Engine"
_SCHEDULER = "Scheduler"


Sources = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="MODEL",
        envvar="QUIRE_MODELS",
        help="A Hugging Face directory or hub id, or NAME=SOURCE to choose its name. The first is "
        "the default model; without any, the shipped quire-mini is served.",
    ),
]
ModelOption = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        envvar="QUIRE_MODELS",
        help="Directory or hub id of a model, or NAME=SOURCE. Repeatable; default: quire-mini, for "
        "workflows quire-reader.",
        rich_help_panel=_ENGINE,
    ),
]
ModelName = Annotated[
    str | None,
    typer.Option(
        envvar="QUIRE_MODEL_NAME", help="The model's name in the API.", rich_help_panel=_ENGINE
    ),
]
Adapters = Annotated[
    list[str] | None,
    typer.Option(
        "--adapter",
        metavar="NAME=DIRECTORY",
        envvar="QUIRE_ADAPTERS",
        help="A LoRA adapter in PEFT's format and its name in the API; with several models "
        "MODEL:NAME=DIRECTORY. Repeatable.",
        rich_help_panel=_ENGINE,
    ),
]
Encoders = Annotated[
    list[str] | None,
    typer.Option(
        "--encoder",
        metavar="[NAME=]SOURCE",
        envvar="QUIRE_ENCODERS",
        help="An embedding model or cross-encoder, as a directory or hub id. With "
        "[NAME=]late-interaction:SOURCE an embedding model scores pairs by their token vectors. "
        "Repeatable.",
        rich_help_panel=_ENGINE,
    ),
]
EncoderInstances = Annotated[
    list[str] | None,
    typer.Option(
        "--encoder-instances",
        metavar="[NAME=]N",
        envvar="QUIRE_ENCODER_INSTANCES",
        help="Number of processes of each encoder, or of the encoder NAME; they share its "
        "requests. Repeatable.",
        rich_help_panel=_ENGINE,
    ),
]
EncoderCacheBytes = Annotated[
    int,
    typer.Option(
        parser=size_or_nothing,
        show_default="64MiB",
        metavar="SIZE",
        envvar="QUIRE_ENCODER_CACHE_BYTES",
        help="Memory for the cache of encoder results: vectors and scores that were computed "
        "for programs and workflows, separate for each tenant; 0: no cache.",
        rich_help_panel=_ENGINE,
    ),
]
EncoderDType = Annotated[
    DTypeOption,
    typer.Option(
        "--encoder-dtype",
        envvar="QUIRE_ENCODER_DTYPE",
        help="Type of the encoders' weights; auto: float32. bfloat16 is faster on a processor "
        "with avx512_bf16, and changes vectors in the third digit.",
        rich_help_panel=_ENGINE,
    ),
]
TokenCacheBytes = Annotated[
    int,
    typer.Option(
        parser=size_or_nothing,
        show_default="128MiB",
        metavar="SIZE",
        envvar="QUIRE_TOKEN_CACHE_BYTES",
        help="Memory of each late-interaction encoder process for the cache of token vectors, "
        "separate for each tenant; 0: no cache.",
        rich_help_panel=_ENGINE,
    ),
]
SharedResultsBytes = Annotated[
    int,
    typer.Option(
        parser=size_or_nothing,
        show_default="16MiB",
        metavar="SIZE",
        envvar="QUIRE_SHARED_RESULTS_BYTES",
        help="Memory for the cache of results of workflows' pure primitives, such as models' "
        "answers: equal primitives of one tenant run once; 0: no cache.",
        rich_help_panel=_ENGINE,
    ),
]
LoadStallTimeout = Annotated[
    float,
    typer.Option(
        min=1.0,
        envvar="QUIRE_LOAD_STALL_TIMEOUT",
        help="Seconds without progress after which a process that loads a model or encoder is "
        "killed and started again.",
        rich_help_panel=_ENGINE,
    ),
]
TensorParallel = Annotated[
    int,
    typer.Option(
        min=1,
        max=64,
        envvar="QUIRE_TENSOR_PARALLEL",
        help="Number of processes that share each model; on CUDA one per device.",
        rich_help_panel=_ENGINE,
    ),
]
DType = Annotated[
    DTypeOption,
    typer.Option(
        envvar="QUIRE_DTYPE",
        help="Type of weights and KV cache; auto: chosen by device.",
        rich_help_panel=_ENGINE,
    ),
]
Device = Annotated[
    str,
    typer.Option(
        envvar="QUIRE_DEVICE", help="cpu, cuda, cuda:1, or auto.", rich_help_panel=_ENGINE
    ),
]
Backend = Annotated[
    BackendOption,
    typer.Option(
        envvar="QUIRE_BACKEND",
        help="Implementation that runs the model: the CPU kernel (cpu), CUDA kernels (cuda) or "
        "plain PyTorch (torch); auto: the fastest that supports the model.",
        rich_help_panel=_ENGINE,
    ),
]
KernelIsa = Annotated[
    str | None,
    typer.Option(
        metavar="ISA",
        envvar="QUIRE_KERNEL_ISA",
        help="Instruction set of the CPU kernel: amx, avx512_bf16, avx512, avx2 or portable; "
        "default: the best that this machine has.",
        rich_help_panel=_ENGINE,
    ),
]
Weights = Annotated[
    WeightsOption,
    typer.Option(
        envvar="QUIRE_WEIGHTS",
        help="Quantise projections while loading: int8 (CPU kernel) or float8 (CUDA); auto: as in"
        " the checkpoint.",
        rich_help_panel=_ENGINE,
    ),
]
NumThreads = Annotated[
    int | None,
    typer.Option(
        min=1,
        envvar="QUIRE_NUM_THREADS",
        help="Threads per engine; default: one for small models, else one per core.",
        rich_help_panel=_ENGINE,
    ),
]
PageSize = Annotated[
    int,
    typer.Option(
        min=1,
        max=64,
        envvar="QUIRE_PAGE_SIZE",
        help="Tokens per page of the KV cache, at most 64.",
        rich_help_panel=_ENGINE,
    ),
]
KvCacheBytes = Annotated[
    int | None,
    typer.Option(
        parser=size_value,
        show_default=f"{format_size(DEFAULT_CACHE_BYTES)}; CUDA: most of what is free",
        metavar="SIZE",
        envvar="QUIRE_KV_CACHE_BYTES",
        help="Memory for the KV cache of each engine, e.g. 512MiB.",
        rich_help_panel=_ENGINE,
    ),
]
HostCacheBytes = Annotated[
    int,
    typer.Option(
        parser=size_or_nothing,
        show_default=format_size(_DEFAULTS.host_cache_bytes),
        metavar="SIZE",
        envvar="QUIRE_HOST_CACHE_BYTES",
        help="Host memory for swapped pages.",
        rich_help_panel=_ENGINE,
    ),
]
DiskCacheBytes = Annotated[
    int,
    typer.Option(
        parser=size_or_nothing,
        show_default="none",
        metavar="SIZE",
        envvar="QUIRE_DISK_CACHE_BYTES",
        help="Disk space of each engine for pages that host memory has no room for.",
        rich_help_panel=_ENGINE,
    ),
]
DiskCacheDir = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        envvar="QUIRE_DISK_CACHE_DIR",
        help="Directory on a local disk for --disk-cache-bytes; the node removes its files "
        "when it ends.",
        rich_help_panel=_ENGINE,
    ),
]
MaxModelLen = Annotated[
    int | None,
    typer.Option(
        min=1,
        envvar="QUIRE_MAX_MODEL_LEN",
        help="Longest context in tokens; default: the model's own limit.",
        rich_help_panel=_ENGINE,
    ),
]
MaxBatchTokens = Annotated[
    int,
    typer.Option(
        min=1,
        envvar="QUIRE_MAX_BATCH_TOKENS",
        help="Largest number of prompt and decode tokens in one step; longer prompts run in "
        "chunks.",
        rich_help_panel=_ENGINE,
    ),
]
MaxSequences = Annotated[
    int,
    typer.Option(
        min=1,
        envvar="QUIRE_MAX_SEQUENCES",
        help="Largest number of decodes that run at once.",
        rich_help_panel=_ENGINE,
    ),
]
Record = Annotated[
    Path | None,
    typer.Option(
        envvar="QUIRE_RECORD",
        help="Write every event of the controller to this file, for 'quire replay'. It "
        "contains prompts.",
        rich_help_panel=_SCHEDULER,
    ),
]
OtlpEndpoint = Annotated[
    str | None,
    typer.Option(
        envvar="QUIRE_OTLP_ENDPOINT",
        metavar="URL",
        help="Send a span for each program, call, wait and transfer to this OpenTelemetry "
        "collector (OTLP over HTTP); needs the extra 'otel'.",
    ),
]
LogLevel = Annotated[
    Literal["debug", "info", "warning", "error"],
    typer.Option(envvar="QUIRE_LOG_LEVEL", help="How much to log to stderr."),
]
Url = Annotated[str, typer.Option(envvar="QUIRE_URL", help="Address of the running node.")]
OptionalUrl = Annotated[
    str | None,
    typer.Option(envvar="QUIRE_URL", help="Address of a running node to use."),
]
ApiKey = Annotated[str | None, typer.Option(envvar="QUIRE_API_KEY", help="API key for the node.")]
Interactive = Annotated[
    bool,
    typer.Option("--interactive", "-i", help="Send each line of stdin to the program."),
]
Stream = Annotated[
    bool,
    typer.Option(
        "--stream",
        help="Print messages without line ends, as pieces of one text. A result that equals this "
        "text is not printed again.",
    ),
]

ProgramId = Annotated[
    str, typer.Argument(metavar="PROGRAM", help="The id from 'quire ps', or a unique prefix of it.")
]
