"""Finds the served family that is nearest to an unserved one, for the message that refuses it.

Works on names only. A table covers families whose names give no hint; others are matched by the
longest common prefix, which must be all of the letters before a number or underscore.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import takewhile

_RELATED = {
    "afmoe": "qwen3_moe",
    "apertus": "llama",
    "arcee": "llama",
    "baichuan": "llama",
    "bailing_moe": "qwen3_moe",
    "bitnet": "llama",
    "bloom": "llama",
    "codegen": "llama",
    "cohere": "llama",
    "cohere2": "ministral",
    "cohere2_moe": "mixtral",
    "dbrx": "mixtral",
    "deepseek": "llama",
    "deepseek_v2": "qwen3_moe",
    "deepseek_v3": "qwen3_moe",
    "deepseek_v32": "qwen3_moe",
    "deepseek_v4": "qwen3_moe",
    "diffllama": "llama",
    "doge": "llama",
    "dots1": "qwen3_moe",
    "dots3_note": "qwen3_moe",
    "ernie4_5_moe": "qwen3_moe",
    "ernie4_5_vl_moe": "ernie4_5",
    "exaone": "llama",
    "exaone4_5": "exaone4",
    "exaone_moe": "exaone4",
    "falcon": "llama",
    "flex_olmo": "olmoe",
    "fuyu": "llama",
    "gemma3n": "gemma3",
    "gemma4": "gemma3",
    "glm4_moe": "qwen3_moe",
    "glm4_moe_lite": "qwen3_moe",
    "glm4v": "glm4",
    "glm_moe_dsa": "qwen3_moe",
    "got_ocr2": "qwen2",
    "gpt-sw3": "llama",
    "gpt2": "llama",
    "gpt_bigcode": "llama",
    "gpt_neo": "llama",
    "gpt_neox": "llama",
    "gpt_neox_japanese": "llama",
    "gptj": "llama",
    "granitemoe_swa": "granitemoe",
    "granitemoeshared": "granitemoe",
    "hunyuan_v1_dense": "qwen3",
    "hunyuan_v1_moe": "qwen3_moe",
    "hy_v3": "qwen3_moe",
    "hyperclovax": "granite",
    "idefics3": "llava",
    "internlm2": "llama",
    "internvl": "llava",
    "iquestcoder": "llama",
    "jais2": "llama",
    "jamba": "mixtral",
    "jetmoe": "mixtral",
    "kimi_k2": "qwen3_moe",
    "laguna": "qwen3_moe",
    "longcat_flash": "qwen3_moe",
    "mellum": "qwen3_moe",
    "mimo_v2_flash": "qwen3_moe",
    "minicpm": "granite",
    "minicpm3": "granite",
    "minimax": "mixtral",
    "minimax_m2": "qwen3_moe",
    "minimax_m3_vl_text": "qwen3_moe",
    "mllama": "llama",
    "modernbert-decoder": "llama",
    "mpt": "llama",
    "nanochat": "llama",
    "nemotron": "llama",
    "olmo": "olmo2",
    "olmo_hybrid": "olmo3",
    "opt": "llama",
    "paligemma": "gemma3",
    "persimmon": "llama",
    "phi": "phi3",
    "phi4_multimodal": "phi3",
    "phimoe": "mixtral",
    "qwen2_5_vl": "qwen2",
    "qwen2_moe": "qwen3_moe",
    "qwen2_vl": "qwen2",
    "qwen3_5": "qwen3",
    "qwen3_5_moe": "qwen3_moe",
    "qwen3_next": "qwen3_moe",
    "qwen3_vl_moe": "qwen3_moe",
    "qwen4_exp": "qwen3_moe",
    "smollm": "llama",
    "smolvlm": "llava",
    "solar": "llama",
    "solar_open": "qwen3_moe",
    "stablelm": "llama",
    "starcoder2": "mistral",
    "vaultgemma": "gemma2",
    "voxtral": "mistral",
    "yi": "llama",
    "youtu": "llama",
}
_LEAST_COMMON = 3


def nearest(model_type: str, served: Iterable[str]) -> str | None:
    """The ``model_type`` of the served family that is most similar; None: no family is."""
    name = model_type.lower()
    found = _RELATED.get(name) or nearest_name(name, served)
    if found is None or name in _RELATED or name.startswith(found):
        return found
    return found if _stem(name) == _stem(found) else None


def _stem(name: str) -> str:
    """The letters before the first number or other sign: ``gpt`` of ``gpt_oss``."""
    return re.split("[^a-z]", name, maxsplit=1)[0]


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
