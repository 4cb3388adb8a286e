"""Names the contenders, how each is started, and where its files are.

Everything is in one folder, ``--cache``: the models, and an environment for each peer (see
``install``). A missing peer is left out, with a message that shows the command to install it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.checkpoints import SHAPES, make_checkpoint
from benchmarks.peers.process import PeerProcess
from benchmarks.report import ROOT, multiplies_bf16

DEFAULT_CACHE = ROOT / "benchmarks" / ".cache"
_HERE = Path(__file__).resolve().parent
MAX_MODEL_LEN = 2048
MAX_SEQUENCES = 32

OURS = ("quire", "quire-fine", "quire-torch", "quire-engine", "quire-int8")
VLLM_TYPES = {"vllm": "bfloat16", "vllm-float32": "float32"}
"""vLLM's contenders, which share one environment, and the type of their weights and cache."""
LLAMACPP_TYPES = {"llamacpp-q8_0": "q8_0", "llamacpp-q4_0": "q4_0"}
"""llama.cpp's contenders, which share one environment, and the type of their weights."""
WHOLE_PEERS = (*VLLM_TYPES, "openvino", "transformers")
"""Peers that read the checkpoint's weights in 16 or 32 bits."""
PEERS = (*WHOLE_PEERS, *LLAMACPP_TYPES)


class PeerMissing(Exception):
    """The peer is not installed; the message says how to install it."""


@dataclass(frozen=True, slots=True)
class PeerLaunch:
    """How to start a worker."""

    command: tuple[str, ...]
    model: Path
    environment: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)

    def start(self, num_threads: int | None = None) -> PeerProcess:
        order = {
            "model": str(self.model),
            "max_model_len": MAX_MODEL_LEN,
            "max_sequences": MAX_SEQUENCES,
            "num_threads": num_threads,
            **self.options,
        }
        return PeerProcess(self.command, order, self.environment)


def model_directory(cache: Path, model: str) -> Path:
    """Return the directory of the checkpoint ``model``, which is created if it is missing."""
    if model not in SHAPES:
        raise SystemExit(f"no model is called {model!r}: choose from {', '.join(SHAPES)}")
    path = cache / "models" / model
    if not (path / "tokenizer.json").is_file():
        print(f"making the model {model} in {path} ...", file=sys.stderr)
        make_checkpoint(model, path)
    return path


def launch(name: str, model: str, cache: Path) -> PeerLaunch:
    """Return how to start contender ``name`` on ``model``.

    Raises:
        PeerMissing: it is not installed below ``cache``.
    """
    path = model_directory(cache, model)
    if name in VLLM_TYPES:
        return PeerLaunch(
            (peer_python(cache, "vllm"), str(_HERE / "vllm_worker.py")),
            path,
            vllm_environment(cache),
            {"dtype": VLLM_TYPES[name]},
        )
    if name == "openvino":
        exported = cache / "openvino-models" / model
        if not (exported / "openvino_model.xml").is_file():
            raise PeerMissing(f"{exported} is not installed: {install_command(name, cache)}")
        return PeerLaunch((peer_python(cache, name), str(_HERE / "openvino_worker.py")), exported)
    if name in LLAMACPP_TYPES:
        file = gguf_file(cache, model, LLAMACPP_TYPES[name])
        if not file.is_file():
            raise PeerMissing(f"{file} is not installed: {install_command('llamacpp', cache)}")
        python = peer_python(cache, "llamacpp")
        return PeerLaunch((python, str(_HERE / "llamacpp_worker.py")), file)
    if name == "transformers":
        return PeerLaunch((sys.executable, str(_HERE / "transformers_worker.py")), path)
    if name in OURS:
        mode = {"quire-fine": "fine", "quire-engine": "engine"}.get(name, "decode")
        backend = "torch" if name == "quire-torch" else "auto"
        weights = "int8" if name == "quire-int8" else "auto"
        return PeerLaunch(
            (sys.executable, str(_HERE / "quire_worker.py")),
            path,
            options={"mode": mode, "backend": backend, "weights": weights},
        )
    raise SystemExit(f"no contender is called {name!r}: choose from {', '.join((*OURS, *PEERS))}")


def quantises(name: str) -> bool:
    """Return whether a contender reads weights of fewer bits than the checkpoint's. Only contenders
    that agree in this are compared."""
    return name == "quire-int8" or name in LLAMACPP_TYPES


def gguf_file(cache: Path, model: str, kind: str) -> Path:
    """Return the file of the weights of ``model`` for llama.cpp, in its type ``kind``."""
    return cache / "llamacpp-models" / f"{model}-{kind}.gguf"


def default_peers() -> tuple[str, ...]:
    """Return the peers to measure on this machine. vLLM in float32 is one only where the processor
    has no bf16: vLLM emulates it there, and float32 is its best type for most requests."""
    return tuple(name for name in PEERS if name != "vllm-float32" or not multiplies_bf16())


def available(names: Iterable[str], model: str, cache: Path) -> dict[str, PeerLaunch]:
    """Return the peers of ``names`` that are installed; report the others on stderr, with the
    remedy."""
    found = {}
    for name in names:
        try:
            found[name] = launch(name, model, cache)
        except PeerMissing as exc:
            print(f"without {name}: {exc}", file=sys.stderr)
    return found


def install_command(name: str, cache: Path) -> str:
    shown = "" if cache == DEFAULT_CACHE else f" --cache {cache}"
    return f"run 'python benchmarks/peers/install.py {name}{shown}'"


def peer_python(cache: Path, name: str) -> str:
    """Return the interpreter of the peer's environment.

    Raises:
        PeerMissing: it is not installed.
    """
    path = cache / name / "bin" / "python"
    if not path.exists():
        raise PeerMissing(f"{path} is not installed: {install_command(name, cache)}")
    return str(path)


def vllm_environment(cache: Path) -> dict[str, str]:
    """Return the environment in which vLLM uses every core, offline, with the allocator that it
    recommends."""
    preload = [
        path
        for path in (
            Path("/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4"),
            cache / "vllm" / "lib" / "libiomp5.so",
        )
        if path.exists()
    ]
    return {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_TARGET_DEVICE": "cpu",
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        "TOKENIZERS_PARALLELISM": "false",
        "LD_PRELOAD": ":".join(map(str, preload)),
    }
