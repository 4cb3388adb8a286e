"""Turns an encoder's hidden states into an embedding: pooling, dense layers, normalisation.

Follows the modules of a sentence-transformers directory. A directory without them is pooled by the
mean, as that library does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from quire.core.errors import UnsupportedModel
from quire.engine.checkpoint.config_accounting import account
from quire.engine.checkpoint.config_reader import ConfigReader
from quire.engine.checkpoint.model_directory import ModelDirectory
from quire.engine.encoders.known_keys import DENSE, POOLING
from quire.engine.encoders.modules import EncoderModule, read_pooling
from quire.engine.encoders.transformer import activation_of
from quire.engine.layers.parameters import Parameters
from quire.engine.weights import Checkpoint

logger = logging.getLogger(__name__)


class EncoderHead(Protocol):
    """Hidden states [B, L, H] and which of them are not padding [B, L], to rows [B, D]."""

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
    """One pooled row per sequence [B, H]."""
    if mode == "cls_token":
        return hidden_BLH[:, 0]
    if mode == "lasttoken":
        return last_token(hidden_BLH, visible_BL)
    lengths_B1 = visible_BL.sum(1, keepdim=True)
    hidden_BLH = hidden_BLH.masked_fill(~visible_BL[:, :, None], 0.0)
    if mode == "max_tokens":
        return hidden_BLH.masked_fill(~visible_BL[:, :, None], float("-inf")).amax(1)
    total_BH = hidden_BLH.sum(1)
    if mode == "mean_tokens":
        return total_BH / lengths_B1
    return total_BH / lengths_B1.sqrt()


def last_token(hidden_BLH: Tensor, visible_BL: Tensor) -> Tensor:
    """The states of each sequence's last token [B, H]."""
    last_B = visible_BL.sum(1) - 1
    return hidden_BLH[torch.arange(len(hidden_BLH), device=last_B.device), last_B]


def embedding_head(
    directory: ModelDirectory, modules: list[EncoderModule], hidden_size: int, device: torch.device
) -> EncoderHead:
    """The head that ``modules`` describe; loads their weights.

    Raises:
        UnsupportedModel: a module or a way of pooling that is not served.
        ModelFormatError: a file that is missing or does not fit.
    """
    modes: tuple[str, ...] = ("mean_tokens",)
    size = hidden_size
    steps: list[Callable[[Tensor], Tensor]] = []
    for module in modules:
        folder = ModelDirectory(directory.path / module.path)
        if module.kind == "Pooling":
            reader = ConfigReader(folder.read_json("config.json"), str(folder.path))
            modes = read_pooling(reader)
            size = hidden_size * len(modes)
            for warning in account(reader, POOLING):
                logger.warning("%s", warning)
        elif module.kind == "Dense":
            step, size = _dense(folder, size, device)
            steps.append(step)
        elif module.kind == "Normalize":
            steps.append(lambda rows: torch.nn.functional.normalize(rows, dim=-1))
        elif module.kind not in ("Transformer", "Dropout"):
            raise UnsupportedModel(
                f"{directory.path} has a module {module.kind[:80]}; served are Transformer, "
                "Pooling, Dense, Dropout and Normalize"
            )
    return EmbeddingHead(modes, steps, size)


def _dense(
    directory: ModelDirectory, size: int, device: torch.device
) -> tuple[Callable[[Tensor], Tensor], int]:
    reader = ConfigReader(directory.read_json("config.json"), str(directory.path))
    num_in = reader.integer("in_features", 1 << 20)
    num_out = reader.integer("out_features", 1 << 20)
    name = reader.text("activation_function", "torch.nn.modules.activation.Tanh")
    has_bias = reader.flag("bias", True)
    activation = activation_of(name)
    if num_in != size or activation is None:
        raise UnsupportedModel(
            f"{directory.path}: a dense layer of {num_in} values behind {size}, with {name[:80]}"
        )
    for warning in account(reader, DENSE):
        logger.warning("%s", warning)
    parameters = Parameters(device, torch.float32)
    weight_OI = parameters.tensor("linear.weight", num_out, num_in)
    bias_O = parameters.tensor("linear.bias", num_out) if has_bias else None
    with Checkpoint(directory) as checkpoint:
        checkpoint.check(parameters.destinations)
        checkpoint.load(parameters.destinations)

    def step(rows: Tensor) -> Tensor:
        result: Tensor = activation(torch.nn.functional.linear(rows, weight_OI, bias_O))
        return result

    return step, num_out
