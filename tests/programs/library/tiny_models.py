"""A node with small random Llamas in this process, in float32, and the same models in transformers.

``tiny`` has pages of 4 and ``wide`` pages of 16 tokens, of the same weights; ``draft`` has nearly
the same weights, ``other`` has nothing in common with them but the tokenizer. ``ending`` is
``tiny`` with an end token that is likely now and then.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM

from quire.core.config import EngineConfig, NodeConfig
from quire.core.ids import ModelId, TenantId
from quire.node import Node
from quire.programs.api import Api, Model
from quire.programs.inferlet import inferlet
from quire.programs.sdk import Sees

VOCAB_SIZE = 300
EOS = 1
CORPUS = ["the quick brown fox jumps over the lazy dog", "what is the age of the dog"] * 4
PROMPT = [41, 77, 105, 3, 260, 261, 19, 44, 77, 105, 3, 88, 270, 12, 9, 33, 41, 77]
MODELS = {
    "tiny": ("llama", 4),
    "wide": ("llama", 16),
    "draft": ("draft", 4),
    "other": ("other", 4),
    "ending": ("ending", 4),
}


def write_models(directory: Path) -> dict[str, Path]:
    """The checkpoints by name."""
    torch.manual_seed(5)
    llama, other = (LlamaForCausalLM(_config()).eval() for _ in range(2))
    draft, ending = (LlamaForCausalLM(_config()).eval() for _ in range(2))
    draft.load_state_dict(llama.state_dict())
    ending.load_state_dict(llama.state_dict())
    with torch.no_grad():
        for parameter in draft.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)
        for likely in greedy(llama, PROMPT, 3)[1:]:  # whatever is said then, the end is as likely
            ending.lm_head.weight[EOS] += 0.5 * llama.lm_head.weight[likely]
    tokenizer = _tokenizer()
    paths = {}
    checkpoints = {"llama": llama, "draft": draft, "other": other, "ending": ending}
    for name, model in checkpoints.items():
        paths[name] = directory / name
        model.save_pretrained(paths[name])
        tokenizer.save(str(paths[name] / "tokenizer.json"))
    return paths


def _config() -> LlamaConfig:
    return LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.25,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=EOS,
        pad_token_id=2,
    )


def _tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token=None))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=["<s>", "</s>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def tiny_node(paths: dict[str, Path]) -> Node:
    engines = tuple(
        EngineConfig(
            source=str(paths[checkpoint]),
            name=ModelId(name),
            dtype="float32",
            device="cpu",
            page_size=page_size,
            kv_cache_bytes=1 << 20,
            host_cache_bytes=1 << 20,
            num_threads=1,
        )
        for name, (checkpoint, page_size) in MODELS.items()
    )
    return Node(NodeConfig(engines=engines, engine_process=False))


async def run(node: Node, program: Callable[[Api], Awaitable[Any]]) -> Any:
    """Run ``program(api)`` as a program of the node; its result."""

    async def main(api: Api, *args: str) -> Any:
        return await program(api)

    return await node.launch(inferlet("test")(main), (), tenant=TenantId("default")).result()


def model_of(api: Api, name: str) -> Model:
    (model,) = [model for model in api.available_models() if model.id == name]
    return model


def logits(
    model: LlamaForCausalLM,
    tokens: Sequence[int],
    sees: Sees | None = None,
    positions: Sequence[int] | None = None,
) -> torch.Tensor:
    """[T, V]: all tokens in one pass; ``sees(query, key)`` by index, for key < query."""
    num = len(tokens)
    visible = torch.ones(num, num, dtype=torch.bool).tril()
    if sees is not None:
        rows = [
            [key < query and not sees(query, key) for key in range(num)] for query in range(num)
        ]
        visible &= ~torch.tensor(rows)
    mask = torch.zeros(num, num).masked_fill(~visible, torch.finfo(torch.float32).min)
    with torch.inference_mode():
        output = model(
            torch.tensor([list(tokens)]),
            attention_mask=mask[None, None],
            position_ids=torch.tensor([list(positions or range(num))]),
            use_cache=False,
        )
    scores: torch.Tensor = output.logits[0]
    return scores


def greedy(
    model: LlamaForCausalLM, prompt: Sequence[int], num_tokens: int, sees: Sees | None = None
) -> list[int]:
    """Greedy decoding by whole passes, up to an end token."""
    if sees is None:
        return list(_plainly_greedy(model, tuple(prompt), num_tokens))
    return _greedy(model, prompt, num_tokens, sees)


@cache
def _plainly_greedy(
    model: LlamaForCausalLM, prompt: tuple[int, ...], num_tokens: int
) -> tuple[int, ...]:
    return tuple(_greedy(model, prompt, num_tokens, None))


def _greedy(
    model: LlamaForCausalLM, prompt: Sequence[int], num_tokens: int, sees: Sees | None
) -> list[int]:
    tokens = list(prompt)
    while len(tokens) < len(prompt) + num_tokens and (
        len(tokens) == len(prompt) or tokens[-1] != EOS
    ):
        tokens.append(int(logits(model, tokens, sees)[-1].argmax()))
    return tokens[len(prompt) :]
