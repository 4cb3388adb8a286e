"""What becomes of an encoder's hidden states: an embedding, or a cross-encoder's score.

Embeddings follow the modules of a sentence-transformers directory (``modules.json``): pooling,
dense layers, normalisation. A directory without them is pooled by the mean, as that library does.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from quire.core.errors import ModelFormatError, UnsupportedModel
from quire.engine.config_reader import ConfigReader
from quire.engine.encoders.config import EncoderShape
from quire.engine.encoders.transformer import Linear, activation_of
from quire.engine.layers.parameters import Parameters
from quire.engine.model_directory import ModelDirectory
from quire.engine.weights import Checkpoint

_MODES = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "lasttoken")


class Head(Protocol):
    """Hidden states [B, L, H] and which of them count [B, L], to rows [B, D]."""

    dimensions: int

    def __call__(self, hidden_BLH: Tensor, visible_BL: Tensor) -> Tensor: ...


class EmbeddingHead:
    """Pools, then applies ``steps``."""

    def __init__(
        self, modes: tuple[str, ...], steps: list[Callable[[Tensor], Tensor]], dimensions: int
    ) -> None:
        self._modes = modes
        self._steps = steps
        self.dimensions = dimensions

    def __call__(self, hidden_BLH: Tensor, visible_BL: Tensor) -> Tensor:
        hidden_BLH = hidden_BLH.float()
        rows = torch.cat([pooled(mode, hidden_BLH, visible_BL) for mode in self._modes], dim=-1)
        for step in self._steps:
            rows = step(rows)
        return rows


def pooled(mode: str, hidden_BLH: Tensor, visible_BL: Tensor) -> Tensor:
    """One row per sequence [B, H]."""
    if mode == "cls_token":
        return hidden_BLH[:, 0]
    lengths_B1 = visible_BL.sum(1, keepdim=True)
    if mode == "lasttoken":
        last_B = lengths_B1[:, 0] - 1
        return hidden_BLH[torch.arange(len(hidden_BLH), device=last_B.device), last_B]
    hidden_BLH = hidden_BLH.masked_fill(~visible_BL[:, :, None], 0.0)
    if mode == "max_tokens":
        return hidden_BLH.masked_fill(~visible_BL[:, :, None], float("-inf")).amax(1)
    total_BH = hidden_BLH.sum(1)
    if mode == "mean_tokens":
        return total_BH / lengths_B1
    return total_BH / lengths_B1.sqrt()


class BertScore:
    """Pooler and classifier of BERT."""

    dimensions = 1

    def __init__(self, parameters: Parameters, shape: EncoderShape, activate: bool) -> None:
        size = shape.hidden_size
        self._pooler = Linear(parameters, "bert.pooler.dense", size, size)
        self._classifier = Linear(parameters, "classifier", size, 1)
        self._activate = activate

    def __call__(self, hidden_BLH: Tensor, visible_BL: Tensor) -> Tensor:
        score = self._classifier(torch.tanh(self._pooler(hidden_BLH[:, 0])))
        return torch.sigmoid(score) if self._activate else score


class RobertaScore:
    """The classification head of RoBERTa."""

    dimensions = 1

    def __init__(self, parameters: Parameters, shape: EncoderShape, activate: bool) -> None:
        size = shape.hidden_size
        self._dense = Linear(parameters, "classifier.dense", size, size)
        self._out = Linear(parameters, "classifier.out_proj", size, 1)
        self._activate = activate

    def __call__(self, hidden_BLH: Tensor, visible_BL: Tensor) -> Tensor:
        score = self._out(torch.tanh(self._dense(hidden_BLH[:, 0])))
        return torch.sigmoid(score) if self._activate else score


def score_head(parameters: Parameters, shape: EncoderShape, directory: ModelDirectory) -> Head:
    """A score from 0 to 1, unless the directory says that it is used as it is
    (sentence-transformers' ``activation_fn``)."""
    config = directory.read_config()
    section = config.get("sentence_transformers")
    name = config.get("sbert_ce_default_activation_function")
    if isinstance(section, dict):
        name = section.get("activation_fn", name)
    if name is not None and str(name).rpartition(".")[2] not in ("Identity", "Sigmoid"):
        raise UnsupportedModel(
            f"{directory.path} scores through {str(name)[:80]}; served are Sigmoid and Identity"
        )
    activate = name is None or not str(name).endswith("Identity")
    kind = BertScore if shape.family == "bert" else RobertaScore
    return kind(parameters, shape, activate)


def embedding_head(directory: ModelDirectory, hidden_size: int, device: torch.device) -> Head:
    """The head that the modules of ``directory`` describe; loads their weights.

    Raises:
        UnsupportedModel: a module or a way of pooling that is not served.
        ModelFormatError: a file that is missing or does not fit.
    """
    modes: tuple[str, ...] = ("mean_tokens",)
    size = hidden_size
    steps: list[Callable[[Tensor], Tensor]] = []
    for kind, path in _modules(directory):
        if kind == "Pooling":
            modes = _pooling_modes(directory, path)
            size = hidden_size * len(modes)
        elif kind == "Dense":
            step, size = _dense(ModelDirectory(directory.path / path), size, device)
            steps.append(step)
        elif kind == "Normalize":
            steps.append(lambda rows: torch.nn.functional.normalize(rows, dim=-1))
        elif kind not in ("Transformer", "Dropout"):
            raise UnsupportedModel(
                f"{directory.path} has a module {kind[:80]}; served are Transformer, Pooling, "
                "Dense, Dropout and Normalize"
            )
    return EmbeddingHead(modes, steps, size)


def _modules(directory: ModelDirectory) -> list[tuple[str, str]]:
    """Class and folder of each module; folders stay inside the directory."""
    if not directory.has("modules.json"):
        return []
    listed = json.loads(directory.read_text("modules.json"))
    found = []
    for module in listed if isinstance(listed, list) else [None]:
        if not isinstance(module, dict):
            raise ModelFormatError(f"{directory.path / 'modules.json'} is not a list of modules")
        path = str(module.get("path", ""))
        if not (directory.path / path).resolve().is_relative_to(directory.path):
            raise ModelFormatError(f"{directory.path / 'modules.json'} names a folder outside it")
        found.append((str(module.get("type", "")).rpartition(".")[2], path))
    return found


def _pooling_modes(directory: ModelDirectory, path: str) -> tuple[str, ...]:
    values = ModelDirectory(directory.path / path).read_json("config.json")
    if values.get("include_prompt") is False:
        raise UnsupportedModel(
            f"{directory.path / path} has include_prompt = false: served are models that pool over "
            "their prompt too"
        )
    mode = values.get("pooling_mode")
    if isinstance(mode, str):  # newer files name one
        wanted = [{"cls": "cls_token", "lasttoken": "lasttoken"}.get(mode, f"{mode}_tokens")]
    else:
        wanted = [
            key.removeprefix("pooling_mode_")
            for key, value in values.items()
            if key.startswith("pooling_mode_") and value is True
        ]
    unknown = [one for one in wanted if one not in _MODES]
    if unknown or not wanted:
        raise UnsupportedModel(
            f"{directory.path / path} pools by {', '.join(unknown) or 'nothing'}; served are "
            f"{', '.join(_MODES)}"
        )
    return tuple(one for one in _MODES if one in wanted)


def _dense(
    directory: ModelDirectory, size: int, device: torch.device
) -> tuple[Callable[[Tensor], Tensor], int]:
    reader = ConfigReader(directory.read_json("config.json"), str(directory.path))
    num_in = reader.integer("in_features", 1 << 20)
    num_out = reader.integer("out_features", 1 << 20)
    name = reader.text("activation_function", "torch.nn.modules.activation.Tanh")
    activation = activation_of(name)
    if num_in != size or activation is None:
        raise UnsupportedModel(
            f"{directory.path}: a dense layer of {num_in} values behind {size}, with {name[:80]}"
        )
    parameters = Parameters(device, torch.float32)
    weight_OI = parameters.tensor("linear.weight", num_out, num_in)
    bias_O = parameters.tensor("linear.bias", num_out) if reader.flag("bias", True) else None
    with Checkpoint(directory) as checkpoint:
        checkpoint.check(parameters.destinations)
        checkpoint.load(parameters.destinations)

    def step(rows: Tensor) -> Tensor:
        result: Tensor = activation(torch.nn.functional.linear(rows, weight_OI, bias_O))
        return result

    return step, num_out


__all__ = ["EmbeddingHead", "Head", "embedding_head", "pooled", "score_head"]
