"""Makes the models that are measured: random Llama checkpoints in three sizes, made once per
machine.

Owns their shapes. The weights are random and widely spread, so that greedy decoding does not repeat
one token; the tokenizers are trained on Python's own library, so that nothing is downloaded.
"""

from __future__ import annotations

import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class CheckpointShape:
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    intermediate_size: int
    vocab_size: int

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @property
    def num_step_weights(self) -> int:
        """Return how many weights every step multiplies with: all except the embedding table."""
        kv = self.num_key_value_heads * self.head_dim
        attention = 2 * self.hidden_size * (self.hidden_size + kv)
        layer = attention + 3 * self.hidden_size * self.intermediate_size
        return self.num_hidden_layers * layer + self.vocab_size * self.hidden_size

    def kv_bytes_per_token(self, element_bytes: int = 2) -> int:
        return 2 * self.num_hidden_layers * self.num_key_value_heads * self.head_dim * element_bytes


SHAPES = {
    "tiny": CheckpointShape(256, 6, 8, 4, 688, 4096),
    "small": CheckpointShape(768, 12, 12, 4, 2048, 32000),
    "1b": CheckpointShape(2048, 16, 32, 8, 8192, 32000),
}
MAX_POSITIONS = 4096
_NUM_TEXTS = 900


def make_checkpoint(name: str, path: Path) -> None:
    """Write the model ``name`` to ``path``. Takes a minute for 1b; needs transformers."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    shape = SHAPES[name]
    torch.manual_seed(0)
    make_tokenizer: Any = PreTrainedTokenizerFast
    tokenizer = make_tokenizer(
        tokenizer_object=_train_tokenizer(shape.vocab_size),
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        model_max_length=MAX_POSITIONS,
    )
    fields: dict[str, Any] = {field: getattr(shape, field) for field in CheckpointShape.__slots__}
    config = LlamaConfig(
        **fields,
        max_position_embeddings=MAX_POSITIONS,
        rms_norm_eps=1e-5,
        initializer_range=0.05,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
    )
    model: Any = LlamaForCausalLM(config)
    model.to(torch.bfloat16).save_pretrained(path)
    tokenizer.save_pretrained(path)


def _train_tokenizer(vocab_size: int) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE(unk_token=None))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<s>", "</s>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(), trainer)
    return tokenizer


def _texts() -> list[str]:
    found: list[str] = []
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py")):
        if "site-packages" in path.parts or len(found) == _NUM_TEXTS:
            continue
        try:
            found.append(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError):
            continue
    return found
