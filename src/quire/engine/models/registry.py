"""Maps each ``model_type`` to its family. To add one, write its module and add it here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from quire.core.errors import UnsupportedModel
from quire.engine.checkpoint.config_accounting import KeyScope
from quire.engine.checkpoint.config_reader import ConfigReader
from quire.engine.encoders.config import ARCHITECTURES
from quire.engine.layers.parameters import Parameters
from quire.engine.models.cwm import read_cwm
from quire.engine.models.decoder import CausalLM, Decoder
from quire.engine.models.decoder_config import DecoderConfig
from quire.engine.models.ernie4_5 import read_ernie4_5
from quire.engine.models.exaone4 import read_exaone4
from quire.engine.models.gemma import read_gemma
from quire.engine.models.gemma2 import read_gemma2
from quire.engine.models.gemma3 import read_gemma3, read_gemma3_text_part
from quire.engine.models.glm4 import read_glm, read_glm4
from quire.engine.models.gpt_oss import read_gpt_oss
from quire.engine.models.granite import read_granite, read_granite_hybrid, read_granite_moe
from quire.engine.models.helium import read_helium
from quire.engine.models.internlm3 import read_internlm3
from quire.engine.models.known_keys import DECODER, WITH_IMAGES
from quire.engine.models.llama import read_llama
from quire.engine.models.llava import read_llava
from quire.engine.models.mistral import (
    read_ministral3,
    read_mistral,
    read_mistral_text_part,
)
from quire.engine.models.mixtral import read_mixtral
from quire.engine.models.nearest import nearest
from quire.engine.models.olmo2 import read_olmo2
from quire.engine.models.olmo3 import read_olmo3
from quire.engine.models.olmoe import read_olmoe
from quire.engine.models.phi3 import read_phi3
from quire.engine.models.qwen2 import read_qwen2
from quire.engine.models.qwen3 import read_qwen3
from quire.engine.models.qwen3_moe import read_qwen3_moe
from quire.engine.models.seed_oss import read_seed_oss
from quire.engine.models.smollm3 import read_smollm3


@dataclass(frozen=True, slots=True)
class ModelFamily:
    """One architecture: how its configuration is read and how its model is built.

    ``sees_images``: its configuration describes a vision tower that is served too. ``keys``: the
    keys that ``read`` may leave unread.
    """

    name: str
    architectures: tuple[str, ...]
    read: Callable[[ConfigReader], DecoderConfig]
    build: Callable[[DecoderConfig, Parameters], CausalLM] = Decoder
    sees_images: bool = False
    keys: KeyScope = DECODER


FAMILIES: dict[str, ModelFamily] = {
    "llama": ModelFamily("llama", ("LlamaForCausalLM",), read_llama),
    "mistral": ModelFamily("mistral", ("MistralForCausalLM",), read_mistral),
    "ministral": ModelFamily("mistral", ("MinistralForCausalLM",), read_mistral),
    "ministral3": ModelFamily("mistral", ("Ministral3ForCausalLM",), read_ministral3),
    "mistral3": ModelFamily(
        "mistral",
        ("Mistral3ForConditionalGeneration",),
        read_mistral_text_part,
        keys=WITH_IMAGES,
    ),
    "mixtral": ModelFamily("mixtral", ("MixtralForCausalLM",), read_mixtral),
    "qwen2": ModelFamily("qwen2", ("Qwen2ForCausalLM",), read_qwen2),
    "qwen3": ModelFamily("qwen3", ("Qwen3ForCausalLM",), read_qwen3),
    "qwen3_moe": ModelFamily("qwen3_moe", ("Qwen3MoeForCausalLM",), read_qwen3_moe),
    "gemma": ModelFamily("gemma", ("GemmaForCausalLM",), read_gemma),
    "gemma2": ModelFamily("gemma2", ("Gemma2ForCausalLM",), read_gemma2),
    "gemma3_text": ModelFamily("gemma3", ("Gemma3ForCausalLM",), read_gemma3),
    "gemma3": ModelFamily(
        "gemma3", ("Gemma3ForConditionalGeneration",), read_gemma3_text_part, keys=WITH_IMAGES
    ),
    "phi3": ModelFamily("phi3", ("Phi3ForCausalLM",), read_phi3),
    "gpt_oss": ModelFamily("gpt_oss", ("GptOssForCausalLM",), read_gpt_oss),
    "olmo2": ModelFamily("olmo2", ("Olmo2ForCausalLM",), read_olmo2),
    "olmo3": ModelFamily("olmo3", ("Olmo3ForCausalLM",), read_olmo3),
    "smollm3": ModelFamily("smollm3", ("SmolLM3ForCausalLM",), read_smollm3),
    "llava": ModelFamily(
        "llava",
        ("LlavaForConditionalGeneration",),
        read_llava,
        sees_images=True,
        keys=WITH_IMAGES,
    ),
    "granite": ModelFamily("granite", ("GraniteForCausalLM",), read_granite),
    "granitemoe": ModelFamily("granite", ("GraniteMoeForCausalLM",), read_granite_moe),
    "granitemoehybrid": ModelFamily(
        "granite", ("GraniteMoeHybridForCausalLM",), read_granite_hybrid
    ),
    "glm": ModelFamily("glm4", ("GlmForCausalLM",), read_glm),
    "glm4": ModelFamily("glm4", ("Glm4ForCausalLM",), read_glm4),
    "exaone4": ModelFamily("exaone4", ("Exaone4ForCausalLM",), read_exaone4),
    "seed_oss": ModelFamily("seed_oss", ("SeedOssForCausalLM",), read_seed_oss),
    "olmoe": ModelFamily("olmoe", ("OlmoeForCausalLM",), read_olmoe),
    "ernie4_5": ModelFamily("ernie4_5", ("Ernie4_5ForCausalLM",), read_ernie4_5),
    "helium": ModelFamily("helium", ("HeliumForCausalLM",), read_helium),
    "cwm": ModelFamily("cwm", ("CwmForCausalLM",), read_cwm),
    "internlm3": ModelFamily(
        "internlm3", ("InternLM3ForCausalLM", "LlamaForCausalLM"), read_internlm3
    ),
}
"""The served families, by ``model_type``."""


def family_of(config: dict[str, Any], where: str) -> ModelFamily:
    """The family of a ``config.json``.

    Raises:
        UnsupportedModel: no built-in family; the message names the nearest and lists all.
    """
    model_type = config.get("model_type")
    family = FAMILIES.get(model_type) if isinstance(model_type, str) else None
    architectures = config.get("architectures")
    if family is None or not _names_one_of(architectures, family.architectures):
        raise UnsupportedModel(
            f"{where} is a {str(model_type)[:80]!r} with architectures {str(architectures)[:200]}, "
            f"which is not served as a model. {_instead(model_type, architectures)} Built in are "
            f"{', '.join(sorted({name for f in FAMILIES.values() for name in f.architectures}))}"
        )
    return family


def _instead(model_type: Any, architectures: Any) -> str:
    """The remedy for a family that is not served."""
    if _names_one_of(architectures or [], tuple(ARCHITECTURES)):
        return "It is an encoder: load it with --encoder."
    found = nearest(model_type, FAMILIES) if isinstance(model_type, str) else None
    if found is None:
        return "No served family is near it: use a checkpoint of one of them."
    return f"Nearest is {FAMILIES[found].architectures[0]} ({found}): use such a checkpoint."


def _names_one_of(architectures: Any, served: tuple[str, ...]) -> bool:
    """Whether ``architectures`` is absent or names a served one."""
    if architectures is None:
        return True
    return isinstance(architectures, list) and any(name in served for name in architectures)
