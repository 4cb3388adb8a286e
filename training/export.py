"""Writes a run as an ordinary Hugging Face directory: bf16 weights, tokenizer, template,
configs."""

import argparse
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor

from training.corpus.document import BOS, END, PAD, SPECIAL_TOKENS
from training.growth import deepen
from training.model import ModelShape, llama_name
from training.tokenizer import load
from training.train import DEFAULT_PLAN, Plan

TEMPLATE = Path(__file__).parent / "templates" / "chat_template.jinja"
DEFAULT_TARGET = Path(__file__).parents[1] / "src" / "quire" / "assets" / "quire-mini"


def model_config(shape: ModelShape, tokenizer: Tokenizer) -> dict[str, Any]:
    """Return ``config.json``."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.width,
        "intermediate_size": shape.hidden_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_size,
        "max_position_embeddings": shape.max_positions,
        "rope_theta": shape.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": shape.rope_theta},
        "rms_norm_eps": shape.norm_eps,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": True,
        "initializer_range": 0.02,
        "use_cache": True,
        "bos_token_id": tokenizer.token_to_id(BOS),
        "pad_token_id": tokenizer.token_to_id(PAD),
        "eos_token_id": tokenizer.token_to_id(END),
        "dtype": "bfloat16",
    }


def tokenizer_config(shape: ModelShape, template: str) -> dict[str, Any]:
    """Return ``tokenizer_config.json``; the template writes the first token, so encoding adds
    none."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": END,
        "pad_token": PAD,
        "additional_special_tokens": [t for t in SPECIAL_TOKENS if t not in (BOS, END, PAD)],
        "add_bos_token": False,
        "add_eos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": shape.max_positions,
        "padding_side": "left",
        "chat_template": template,
    }


def export(
    weights: Mapping[str, Tensor], shape: ModelShape, tokenizer: Tokenizer, target: Path
) -> None:
    """Write every file of the directory except the card and the licence."""
    target.mkdir(parents=True, exist_ok=True)
    tensors = {llama_name(n): w.to(torch.bfloat16).contiguous() for n, w in weights.items()}
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    (target / "model.safetensors").chmod(0o644)
    tokenizer.save(str(target / "tokenizer.json"))
    config = model_config(shape, tokenizer)
    generation = {key: config[key] for key in ("bos_token_id", "pad_token_id")}
    generation |= {"eos_token_id": [config["eos_token_id"]], "do_sample": False}
    generation |= {"max_new_tokens": 256}
    template = TEMPLATE.read_text().rstrip("\n")
    specials = {"bos_token": BOS, "eos_token": END, "pad_token": PAD}
    for name, content in {
        "config.json": config,
        "generation_config.json": generation,
        "tokenizer_config.json": tokenizer_config(shape, template),
        "special_tokens_map.json": specials,
    }.items():
        (target / name).write_text(json.dumps(content, indent=2) + "\n")
    shutil.copyfile(TEMPLATE, target / "chat_template.jinja")


def mean_with(
    weights: Mapping[str, Tensor], others: Mapping[str, Tensor], share: float = 0.5
) -> dict[str, Tensor]:
    """Return the mean of ``weights``, as they would be exported, and the tensors of an exported
    model of their shape; ``share``: how much the first count, of 1."""
    own = {name: weight.to(torch.bfloat16).float() for name, weight in weights.items()}
    return {
        name: share * one + (1 - share) * others[llama_name(name)].float()
        for name, one in own.items()
    }


def export_run(
    folder: Path,
    target: Path,
    plan: Plan,
    *,
    mean: bool,
    other: Path | None = None,
    share: float = 0.5,
) -> None:
    """Export the last checkpoint of a run by ``plan``, either the weights or their running mean;
    with ``other``, the mean of that, which counts ``share``, and of an exported model, deepened to
    the run's number of layers."""
    tokenizer = load(folder / "tokenizer.json")
    state = torch.load(folder / "checkpoint.pt")
    weights = state["mean" if mean else "model"]
    shape = ModelShape(tokenizer.get_vocab_size(), **plan.shape)
    if other is not None:
        tensors = deepen(load_file(other / "model.safetensors"), shape.num_layers)
        weights = mean_with(weights, tensors, share)
    export(weights, shape, tokenizer, target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="the run's folder")
    parser.add_argument("--target", type=Path, default=DEFAULT_TARGET)
    parser.add_argument("--plan", type=Path, default=DEFAULT_PLAN, help="the plan of the run")
    parser.add_argument("--mean", action="store_true", help="the running mean of the weights")
    parser.add_argument(
        "--mean-with", type=Path, metavar="DIRECTORY", dest="other",
        help="the mean of the run's weights and those of this exported model",
    )  # fmt: skip
    parser.add_argument(
        "--share", type=float, default=0.5,
        help="how much the run's weights count in that mean, of 1 (default: %(default)s)",
    )  # fmt: skip
    options = parser.parse_args()
    plan = Plan.read(options.plan)
    export_run(
        options.folder,
        options.target,
        plan,
        mean=options.mean,
        other=options.other,
        share=options.share,
    )


if __name__ == "__main__":
    main()
