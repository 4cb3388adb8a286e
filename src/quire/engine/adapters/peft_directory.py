"""Reads one PEFT adapter directory and checks it against the model before use.

Owns the names of its files and tensors. Trusts no content of the files; never opens pickles.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from quire.core.config import AdapterConfig
from quire.core.errors import ModelError, ModelFormatError, UnsupportedModel
from quire.engine.adapters.peft_config import CONFIG_FILE, MAX_RANK, PeftConfig, read_peft_config
from quire.engine.checkpoint.model_directory import ADAPTER_WANTED, ModelDirectory, locate

WEIGHTS_FILE = "adapter_model.safetensors"
MAX_WEIGHTS_BYTES = 16 << 30

_TENSOR = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<side>[AB])(\.default)?\.weight")
_DTYPES = {"F64", "F32", "F16", "BF16"}


@dataclass(frozen=True, slots=True)
class ModuleShape:
    """The sizes of a projection that takes adapters, as in the checkpoint."""

    num_outputs: int
    num_inputs: int


@dataclass(frozen=True, slots=True, eq=False)
class ModuleAdapter:
    """The term added to one projection: ``scaling * up (down x)``. O outputs, I inputs, R rank."""

    down_RI: Tensor
    up_OR: Tensor
    scaling: float

    @property
    def rank(self) -> int:
        return self.down_RI.shape[0]


@dataclass(frozen=True, slots=True, eq=False)
class AdapterWeights:
    """An adapter's weights in float32 on the host, by module path. ``digest``: of its files.

    ``problem``: why it has no modules, if it could not be loaded and is not required.
    """

    name: str
    digest: str
    modules: Mapping[str, ModuleAdapter]
    problem: str = ""

    @property
    def rank(self) -> int:
        return max((module.rank for module in self.modules.values()), default=0)


def load_adapters(
    adapters: Sequence[AdapterConfig], shapes: Mapping[str, ModuleShape]
) -> list[AdapterWeights]:
    """Load all of ``adapters``, in order.

    Raises:
        ModelError: see ``load_adapter``. For an adapter that is not required it becomes the
            adapter's ``problem`` instead.
    """
    loaded = []
    for adapter in adapters:
        try:
            loaded.append(load_adapter(adapter, shapes))
        except ModelError as exc:
            if adapter.is_needed:
                raise type(exc)(f"adapter {adapter.name}: {exc.message}", **exc.details) from exc
            loaded.append(AdapterWeights(adapter.name, "", {}, problem=exc.message))
    return loaded


def load_adapter(adapter: AdapterConfig, shapes: Mapping[str, ModuleShape]) -> AdapterWeights:
    """Read and check the adapter for a model with the projections ``shapes``.

    Raises:
        ModelNotFound: no such directory.
        ModelFormatError: files missing or damaged, or made for another model.
        UnsupportedModel: a form of adapter that is not served.
    """
    directory = locate(adapter.source, ADAPTER_WANTED)
    if not directory.has(CONFIG_FILE):
        raise ModelFormatError(
            f"{directory.path} has no {CONFIG_FILE}: an adapter is a directory as PEFT's "
            "save_pretrained writes it"
        )
    config = read_peft_config(directory.read_json(CONFIG_FILE), str(directory.path / CONFIG_FILE))
    path = _weights_path(directory)
    try:
        with safe_open(path, framework="pt") as file:
            modules = _read_modules(file, path, config, shapes)
    except (SafetensorError, OSError) as exc:
        raise ModelFormatError(
            f"{path} cannot be read ({exc}): it is truncated or damaged; fetch it again"
        ) from exc
    return AdapterWeights(adapter.name, _digest(directory, path), modules)


def _weights_path(directory: ModelDirectory) -> Path:
    path = directory.path / WEIGHTS_FILE
    if not path.exists():
        pickles = directory.pickle_files()
        why = (
            f"its weights are in a pickle ({', '.join(pickles[:3])}), which can run code and is "
            "never opened: load it with PEFT and save it with safe_serialization=True"
            if pickles
            else "the weights are missing: fetch them"
        )
        raise ModelFormatError(f"{directory.path} has no {WEIGHTS_FILE}: {why}")
    if not path.is_file():  # opening a pipe would wait for its writer
        raise ModelFormatError(f"{path} is not a regular file: fetch it again")
    size = path.stat().st_size
    if size > MAX_WEIGHTS_BYTES:
        raise ModelFormatError(
            f"{path} has {size} bytes; at most {MAX_WEIGHTS_BYTES} are read: check what it is"
        )
    return path


def _read_modules(
    file: Any, path: Path, config: PeftConfig, shapes: Mapping[str, ModuleShape]
) -> dict[str, ModuleAdapter]:
    names = _tensor_names(list(file.keys()), path, shapes)
    modules = {}
    for module, sides in sorted(names.items()):
        _check_shapes(file, path, module, sides, config, shapes[module])
        down_RI, up_OR = (_read(file, path, sides[side]) for side in ("A", "B"))
        modules[module] = ModuleAdapter(down_RI, up_OR, config.scaling_of(module))
    return modules


def _tensor_names(
    names: list[str], path: Path, shapes: Mapping[str, ModuleShape]
) -> dict[str, dict[str, str]]:
    """Tensor names by module and side (A, B).

    Raises:
        UnsupportedModel: a tensor that is no plain LoRA weight of a served projection.
        ModelFormatError: one of a pair is missing, or there are none.
    """
    found: dict[str, dict[str, str]] = {}
    for name in sorted(names):
        match = _TENSOR.fullmatch(name)
        module = "" if match is None else match["module"]
        if match is None or module not in shapes:
            raise UnsupportedModel(
                f"{path} has the tensor {name[:200]!r}, which belongs to no projection that takes "
                f"adapters here; those are {_served(shapes)} of every layer: train on these, or "
                "check that the adapter was made for this model"
            )
        if match["side"] in found.setdefault(module, {}):
            raise ModelFormatError(
                f"{path} has lora_{match['side']} of {module!r} twice: save the adapter again"
            )
        found[module][match["side"]] = name
    lone = [module for module, sides in found.items() if len(sides) != 2]
    if lone or not found:
        what = f"only one of lora_A and lora_B of {lone[0]!r}" if lone else "no tensors"
        raise ModelFormatError(f"{path} has {what}: save the adapter again")
    return found


def _served(shapes: Mapping[str, ModuleShape]) -> str:
    return ", ".join(sorted({module.rsplit(".", 1)[-1] for module in shapes})) or "none"


def _check_shapes(
    file: Any,
    path: Path,
    module: str,
    sides: Mapping[str, str],
    config: PeftConfig,
    shape: ModuleShape,
) -> None:
    """Check the shapes of a pair. Reads the header only, so that nothing is allocated for a refused
    adapter."""
    rank = config.rank_of(module)
    for side, wanted in (("A", [rank, shape.num_inputs]), ("B", [shape.num_outputs, rank])):
        header = file.get_slice(sides[side])
        if list(header.get_shape()) != wanted:
            raise ModelFormatError(
                f"{path}: lora_{side} of {module!r} has shape {header.get_shape()}, the model and "
                f"{CONFIG_FILE} (rank {rank} of at most {MAX_RANK}) ask for {wanted}: the adapter "
                "was made for another model, or its files do not belong together"
            )
        if header.get_dtype() not in _DTYPES:
            raise UnsupportedModel(
                f"{path}: lora_{side} of {module!r} has dtype {header.get_dtype()}; served are "
                "F32, F16 and BF16"
            )


def _read(file: Any, path: Path, name: str) -> Tensor:
    tensor: Tensor = file.get_tensor(name).float()
    if not torch.isfinite(tensor).all():
        raise ModelFormatError(
            f"{path}: tensor {name!r} has values that are NaN or infinite: the adapter is "
            "damaged; fetch or train it again"
        )
    return tensor


def _digest(directory: ModelDirectory, weights: Path) -> str:
    digest = hashlib.sha256(directory.read_text(CONFIG_FILE).encode())
    with weights.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
