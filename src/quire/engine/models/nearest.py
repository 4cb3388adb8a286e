"""The served family that is nearest to an unserved one, for the message that refuses it.

Works on names only. A table covers families whose name does not tell; others are matched by the
longest common prefix.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile

_RELATED = {
    "apertus": "llama",
    "arcee": "llama",
    "baichuan": "llama",
    "bitnet": "llama",
    "bloom": "llama",
    "cohere": "llama",
    "cohere2": "ministral",
    "dbrx": "mixtral",
    "deepseek": "llama",
    "deepseek_v2": "qwen3_moe",
    "deepseek_v3": "qwen3_moe",
    "deepseek_v32": "qwen3_moe",
    "dots1": "qwen3_moe",
    "ernie4_5": "llama",
    "ernie4_5_moe": "qwen3_moe",
    "exaone": "llama",
    "exaone4": "olmo3",
    "falcon": "llama",
    "glm": "llama",
    "glm4": "llama",
    "glm4_moe": "qwen3_moe",
    "gpt2": "llama",
    "gpt_neox": "llama",
    "gptj": "llama",
    "granitemoe": "mixtral",
    "helium": "llama",
    "hunyuan_v1_dense": "qwen3",
    "hunyuan_v1_moe": "qwen3_moe",
    "idefics3": "llava",
    "internlm2": "llama",
    "internlm3": "llama",
    "internvl": "llava",
    "jamba": "mixtral",
    "kimi_k2": "qwen3_moe",
    "minicpm": "granite",
    "minimax": "mixtral",
    "minimax_m2": "qwen3_moe",
    "mllama": "llama",
    "mpt": "llama",
    "nemotron": "llama",
    "olmo": "olmo2",
    "olmoe": "qwen3_moe",
    "opt": "llama",
    "paligemma": "gemma3",
    "persimmon": "llama",
    "phi": "phi3",
    "phimoe": "mixtral",
    "qwen2_moe": "qwen3_moe",
    "qwen3_next": "qwen3_moe",
    "seed_oss": "qwen2",
    "smollm": "llama",
    "smolvlm": "llava",
    "solar": "llama",
    "stablelm": "llama",
    "starcoder2": "mistral",
    "voxtral": "mistral",
    "yi": "llama",
}
_LEAST_COMMON = 3


def nearest(model_type: str, served: Iterable[str]) -> str | None:
    """The ``model_type`` of the served family that is most similar; None: no family is."""
    name = model_type.lower()
    return _RELATED.get(name) or nearest_name(name, served)


def nearest_name(name: str, served: Iterable[str]) -> str | None:
    """The longest of ``served`` that is a prefix of ``name``, else the shortest of those with the
    longest common prefix; None: no common prefix of more than a few characters."""
    candidates = list(served)
    begins = [one for one in candidates if name.startswith(one)]
    if begins:
        return max(begins, key=len)
    found = max(candidates, key=lambda one: (_num_common(name, one), -len(one)))
    return found if _num_common(name, found) >= _LEAST_COMMON else None


def _num_common(one: str, other: str) -> int:
    """The length of the common prefix."""
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
