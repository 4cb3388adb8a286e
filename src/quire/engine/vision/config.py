"""The specification of a vision tower and its projector, as plain data read from ``config.json``.

Nothing here depends on a device, on weights or on pixels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from quire.core.errors import ModelFormatError, UnsupportedModel
from quire.engine.checkpoint.config_reader import ConfigReader

T = TypeVar("T")
TowerKind = Literal["clip", "siglip"]
TowerActivation = Literal["quick_gelu", "gelu", "gelu_tanh"]

_KINDS: Mapping[str, TowerKind] = {"clip_vision_model": "clip", "siglip_vision_model": "siglip"}
_ACTIVATIONS: Mapping[str, TowerActivation] = {
    "quick_gelu": "quick_gelu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
}
_DEFAULTS: Mapping[TowerKind, Mapping[str, Any]] = {
    "clip": {
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "image_size": 336,
        "patch_size": 14,
        "hidden_act": "quick_gelu",
        "layer_norm_eps": 1e-5,
    },
    "siglip": {
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "image_size": 224,
        "patch_size": 16,
        "hidden_act": "gelu_pytorch_tanh",
        "layer_norm_eps": 1e-6,
    },
}
"""Values that published configurations leave out."""

_MAX_SIZE = 1 << 16
_MAX_PATCHES = 1 << 14


@dataclass(frozen=True, slots=True)
class VisionConfig:
    """A tower of ``num_layers`` (those that are used) over square patches, and its projector.

    ``clip`` has a class token before the patches, a norm before the layers and no bias in its patch
    projection; ``siglip`` has only the bias. ``drops_first``: the projector does not get the first
    token (the class token). ``image_token``: placeholder of one image embedding in a prompt.
    """

    kind: TowerKind
    hidden_size: int
    inner_size: int
    num_layers: int
    num_heads: int
    image_size: int
    patch_size: int
    activation: TowerActivation
    norm_eps: float
    drops_first: bool
    projector_activation: TowerActivation
    projector_bias: bool
    output_size: int
    image_token: int

    @property
    def num_patches(self) -> int:
        return (self.image_size // self.patch_size) ** 2

    @property
    def num_tokens(self) -> int:
        """The number of tokens that the tower's layers process per image."""
        return self.num_patches + (self.kind == "clip")

    @property
    def num_embeds(self) -> int:
        """Input embeddings per image."""
        return self.num_tokens - self.drops_first


def read_vision(config: ConfigReader, *, output_size: int, vocab_size: int) -> VisionConfig:
    """The tower of a LLaVA ``config.json``; ``output_size`` is the decoder's hidden size.

    Raises:
        ModelFormatError: a value missing or out of bounds.
        UnsupportedModel: another tower, features of several layers, another activation.
    """
    vision = config.section("vision_config")
    if vision is None:
        raise ModelFormatError(
            f"{config.where} has no vision_config: the file is damaged; download it again"
        )
    kind = _one_of(vision, "model_type", _KINDS, "clip_vision_model")
    vision = vision.over(_DEFAULTS[kind])
    hidden_size = vision.integer("hidden_size", _MAX_SIZE)
    num_heads = vision.integer("num_attention_heads", 1024)
    image_size = vision.integer("image_size", _MAX_SIZE)
    patch_size = vision.integer("patch_size", image_size)
    if hidden_size % num_heads or (image_size // patch_size) ** 2 > _MAX_PATCHES:
        raise ModelFormatError(
            f"{vision.where}: {num_heads} heads in {hidden_size} columns, patches of {patch_size} "
            f"in images of {image_size}: heads must divide evenly, and there are at most "
            f"{_MAX_PATCHES} patches"
        )
    strategy = {"default": True, "full": False}
    return VisionConfig(
        kind=kind,
        hidden_size=hidden_size,
        inner_size=vision.integer("intermediate_size", _MAX_SIZE),
        num_layers=_num_layers(config, vision),
        num_heads=num_heads,
        image_size=image_size,
        patch_size=patch_size,
        activation=_one_of(vision, "hidden_act", _ACTIVATIONS, "gelu"),
        norm_eps=vision.number("layer_norm_eps", low=0.0, high=1.0),
        drops_first=_one_of(config, "vision_feature_select_strategy", strategy, "default"),
        projector_activation=_one_of(config, "projector_hidden_act", _ACTIVATIONS, "gelu"),
        projector_bias=config.flag("multimodal_projector_bias", True),
        output_size=output_size,
        image_token=_image_token(config, vocab_size),
    )


def _num_layers(config: ConfigReader, vision: ConfigReader) -> int:
    """Number of layers up to the one whose output the projector reads."""
    there = vision.integer("num_hidden_layers", 1024)
    layer = config.raw("vision_feature_layer", -2)
    if isinstance(layer, list):
        raise UnsupportedModel(
            f"{config.where} reads features of several layers, {str(layer)[:80]}; served are "
            "models that read one"
        )
    layer = ConfigReader({"vision_feature_layer": layer}, config.where).integer(
        "vision_feature_layer", there, low=-there - 1
    )
    return layer if layer >= 0 else there + 1 + layer


def _image_token(config: ConfigReader, vocab_size: int) -> int:
    name = "image_token_index" if config.has("image_token_index") else "image_token_id"
    return config.integer(name, vocab_size - 1, low=0, default=min(32000, vocab_size - 1))


def _one_of(config: ConfigReader, name: str, served: Mapping[str, T], default: str) -> T:
    value = config.text(name, default)
    if value not in served:
        raise UnsupportedModel(
            f"{config.where} has {name} = {value[:80]!r}; served are {', '.join(served)}"
        )
    return served[value]
