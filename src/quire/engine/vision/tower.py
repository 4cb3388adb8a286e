"""A vision transformer (CLIP or SigLIP) and its projector, in PyTorch.

Owns the definition; ``image_processor`` defines the pixels.

Shapes: B images, P tokens of an image, H hidden size, S pixels of an edge, E embeddings of an
image, O hidden size of the decoder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from quire.engine.layers.linear import Linear
from quire.engine.layers.norm import LayerNorm
from quire.engine.layers.parameters import Parameters
from quire.engine.vision.config import TowerActivation, VisionConfig


def _quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


def _gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


_ACTIVATIONS: Mapping[TowerActivation, Callable[[Tensor], Tensor]] = {
    "quick_gelu": _quick_gelu,
    "gelu": F.gelu,
    "gelu_tanh": _gelu_tanh,
}


class TowerLayer:
    """Bidirectional attention, then an MLP; a norm before each."""

    def __init__(self, config: VisionConfig, parameters: Parameters, prefix: str) -> None:
        size = config.hidden_size
        self.num_heads = config.num_heads
        self.attention_norm = LayerNorm(parameters, f"{prefix}.layer_norm1", size, config.norm_eps)
        parts = {f"{prefix}.self_attn.{name}_proj": size for name in "qkv"}
        self.qkv = Linear(parameters, parts, size, bias=True)
        self.output = Linear(parameters, {f"{prefix}.self_attn.out_proj": size}, size, bias=True)
        self.mlp_norm = LayerNorm(parameters, f"{prefix}.layer_norm2", size, config.norm_eps)
        self.inner = Linear(parameters, {f"{prefix}.mlp.fc1": config.inner_size}, size, bias=True)
        self.outer = Linear(parameters, {f"{prefix}.mlp.fc2": size}, config.inner_size, bias=True)
        self.activation = _ACTIVATIONS[config.activation]

    def __call__(self, x_BPH: Tensor) -> Tensor:
        x_BPH = x_BPH + self.output(self._attend(self.qkv(self.attention_norm(x_BPH))))
        return x_BPH + self.outer(self.activation(self.inner(self.mlp_norm(x_BPH))))

    def _attend(self, qkv: Tensor) -> Tensor:
        num_images, num_tokens, _ = qkv.shape
        heads = qkv.view(num_images, num_tokens, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(heads[0], heads[1], heads[2])
        return out.transpose(1, 2).reshape(num_images, num_tokens, -1)


class VisionTower:
    """Pixels to input embeddings of the decoder.

    ``prefix``: of the tower's tensors in its checkpoint; the projector is
    ``multi_modal_projector``.
    """

    def __init__(self, config: VisionConfig, parameters: Parameters, prefix: str) -> None:
        self.config = config
        size, patch = config.hidden_size, config.patch_size
        is_clip = config.kind == "clip"
        place = f"{prefix}.embeddings"
        self.patch_weight = parameters.tensor(
            f"{place}.patch_embedding.weight", size, 3, patch, patch
        )
        self.patch_bias_H = (
            None if is_clip else parameters.tensor(f"{place}.patch_embedding.bias", size)
        )
        self.class_H = parameters.tensor(f"{place}.class_embedding", size) if is_clip else None
        self.positions_PH = parameters.tensor(
            f"{place}.position_embedding.weight", config.num_tokens, size
        )
        self.first_norm = (
            LayerNorm(parameters, f"{prefix}.pre_layrnorm", size, config.norm_eps)
            if is_clip
            else None
        )
        self.layers = [
            TowerLayer(config, parameters, f"{prefix}.encoder.layers.{number}")
            for number in range(config.num_layers)
        ]
        output, bias = config.output_size, config.projector_bias
        projector = "multi_modal_projector.linear_"
        self.inner = Linear(parameters, {f"{projector}1": output}, size, bias=bias)
        self.outer = Linear(parameters, {f"{projector}2": output}, output, bias=bias)
        self.activation = _ACTIVATIONS[config.projector_activation]

    def __call__(self, pixels_B3SS: Tensor) -> Tensor:
        """Embeddings ``[B, E, O]``, by row and then column of patches."""
        x_BPH = self._embed(pixels_B3SS.to(self.patch_weight.dtype))
        for layer in self.layers:
            x_BPH = layer(x_BPH)
        if self.config.drops_first:
            x_BPH = x_BPH[:, 1:]
        return self.outer(self.activation(self.inner(x_BPH)))

    def _embed(self, pixels: Tensor) -> Tensor:
        patches = F.conv2d(
            pixels, self.patch_weight, self.patch_bias_H, stride=self.config.patch_size
        )
        x_BPH = patches.flatten(2).transpose(1, 2)
        if self.class_H is not None:
            x_BPH = torch.cat((self.class_H.expand(len(x_BPH), 1, -1), x_BPH), dim=1)
        x_BPH = x_BPH + self.positions_PH
        return x_BPH if self.first_norm is None else self.first_norm(x_BPH)
