"""Small random LLaVA checkpoints and image files, made with transformers and Pillow."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from engine_checkpoints import VOCAB_SIZE, make_checkpoint
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import (
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    Qwen2Config,
    SiglipVisionConfig,
)
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

IMAGE_TOKEN = VOCAB_SIZE - 1
IMAGE_SIZE, PATCH_SIZE = 28, 7

Tower = Literal["clip", "siglip"]

_TOWER: dict[str, Any] = {
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "image_size": IMAGE_SIZE,
    "patch_size": PATCH_SIZE,
}
_TEXT: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
PROCESSORS: dict[Tower, dict[str, Any]] = {
    "clip": {
        "image_processor_type": "CLIPImageProcessor",
        "size": {"shortest_edge": IMAGE_SIZE},
        "crop_size": {"height": IMAGE_SIZE, "width": IMAGE_SIZE},
        "resample": 3,
    },
    "siglip": {
        "image_processor_type": "SiglipImageProcessor",
        "size": {"height": IMAGE_SIZE, "width": IMAGE_SIZE},
        "resample": 3,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    },
}


def make_llava(tower: Tower, path: Path, **changes: Any) -> None:
    """CLIP over Llama in the layout of LLaVA 1.5, or SigLIP over Qwen2 as LLaVA-Interleave."""
    make_checkpoint("llama", path)  # for its tokenizer
    torch.manual_seed(3)
    if tower == "clip":
        vision, text = CLIPVisionConfig(**_TOWER), LlamaConfig(**_TEXT)
        features: dict[str, Any] = {"vision_feature_layer": -2}
    else:
        vision, text = SiglipVisionConfig(**_TOWER), Qwen2Config(**_TEXT)
        features = {"vision_feature_layer": -1, "vision_feature_select_strategy": "full"}
    config = LlavaConfig(
        vision_config=vision, text_config=text, image_token_index=IMAGE_TOKEN,
        **{**features, **changes},
    )  # fmt: skip
    model = LlavaForConditionalGeneration(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name:
                parameter.normal_(std=0.2)
    model.save_pretrained(path)
    (path / "preprocessor_config.json").write_text(json.dumps(PROCESSORS[tower]))


def rename_tensors(path: Path, old: str, new: str) -> None:
    """Rename tensors as older exports call them."""
    file = path / "model.safetensors"
    tensors = {name.replace(old, new): tensor for name, tensor in load_file(file).items()}
    save_file(tensors, file, {"format": "pt"})


def picture(width: int, height: int, seed: int = 0, mode: str = "RGB") -> Image.Image:
    channels = {"L": (), "RGB": (3,), "RGBA": (4,)}[mode]
    values = np.random.default_rng(seed).integers(0, 256, (height, width, *channels), np.uint8)
    return Image.fromarray(values, mode)


def file_of(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def reference_pixels(tower: Tower, image: bytes) -> torch.Tensor:
    """``[1, 3, S, S]`` of transformers' own processor."""
    values = {k: v for k, v in PROCESSORS[tower].items() if k != "image_processor_type"}
    kind = CLIPImageProcessorPil if tower == "clip" else SiglipImageProcessorPil
    opened = Image.open(io.BytesIO(image))
    pixels: torch.Tensor = kind(**values)(opened, return_tensors="pt")["pixel_values"]
    return pixels
