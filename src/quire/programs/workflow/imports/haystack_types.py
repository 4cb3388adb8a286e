"""The component types of Haystack that have a counterpart, and the treatment of each parameter.

A type is known by the last name of its class: packages have moved between releases. Nothing is
imported by that name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Role = Literal[
    "converter", "splitter", "document_embedder", "text_embedder", "writer", "retriever", "ranker",
    "prompt", "generator", "answers",
]  # fmt: skip

PREFIXES = ("haystack.components.", "haystack_integrations.components.")


@dataclass(frozen=True, slots=True)
class KnownComponent:
    """``used``: parameters that shape the component. ``told``: those that the node's own setting
    replaces, which the import notes. ``harmless``: those without a meaning here. ``fixed``: those
    that may only have these values."""

    role: Role
    used: frozenset[str] = frozenset()
    told: frozenset[str] = frozenset()
    harmless: frozenset[str] = frozenset()
    fixed: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)


_CONVERTER = KnownComponent(
    "converter",
    harmless=frozenset({"encoding", "store_full_path", "progress_bar", "table_to_single_line"}),
    fixed={"extraction_kwargs": (None, {}), "converter": (None,), "extraction_mode": ("plain",)},
)
_SERVICE = frozenset(
    {
        "api_key", "organization", "timeout", "max_retries", "http_client_kwargs", "batch_size",
        "progress_bar", "device", "token", "raise_on_failure", "trust_remote_code", "backend",
        "local_files_only", "model_kwargs", "tokenizer_kwargs", "config_kwargs", "precision",
        "encode_kwargs", "normalize_embeddings", "truncate_dim", "revision",
    }
)  # fmt: skip
"""Parameters of the way to a service or library, for which the node has its own."""
_EMBEDDER: Mapping[str, tuple[Any, ...]] = {
    "prefix": ("",), "suffix": ("",), "meta_fields_to_embed": ([], None), "dimensions": (None,),
    "api_base_url": (None,),
}  # fmt: skip
_GENERATOR: Mapping[str, tuple[Any, ...]] = {
    "api_base_url": (None,), "tools": (None, []), "tools_strict": (False,),
    "streaming_callback": (None,), "stop_words": (None, []),
}  # fmt: skip


_ENDPOINT = frozenset({"api_base_url", "model", "api_key", "timeout", "max_retries"})


def _embedder(role: Role) -> KnownComponent:
    harmless = _SERVICE | {"embedding_separator"}
    return KnownComponent(role, told=frozenset({"model"}), harmless=harmless, fixed=_EMBEDDER)


def _generator_of_openai() -> KnownComponent:
    """A generator whose model is at ``api_base_url``, or by default the node's model."""
    used = _ENDPOINT | {"generation_kwargs", "system_prompt"}
    fixed = {key: values for key, values in _GENERATOR.items() if key not in _ENDPOINT}
    return KnownComponent("generator", used=used, harmless=_SERVICE - _ENDPOINT, fixed=fixed)


def _generator() -> KnownComponent:
    return KnownComponent(
        "generator",
        used=frozenset({"generation_kwargs", "system_prompt"}),
        told=frozenset({"model"}),
        harmless=_SERVICE | {"task", "huggingface_pipeline_kwargs", "api_type", "api_params"},
        fixed=_GENERATOR,
    )


_RANKER = KnownComponent(
    "ranker",
    used=frozenset({"top_k"}),
    told=frozenset({"model"}),
    harmless=_SERVICE | {"scale_score", "calibration_factor"},
    fixed={
        "query_prefix": ("",), "query_suffix": ("",), "document_prefix": ("",),
        "document_suffix": ("",), "meta_fields_to_embed": ([], None), "score_threshold": (None,),
        "embedding_separator": ("\n",),
    },
)  # fmt: skip

KNOWN: Mapping[str, KnownComponent] = {
    "TextFileToDocument": _CONVERTER,
    "MarkdownToDocument": _CONVERTER,
    "HTMLToDocument": _CONVERTER,
    "PyPDFToDocument": _CONVERTER,
    "DocumentSplitter": KnownComponent(
        "splitter",
        used=frozenset({"split_length", "split_overlap"}),
        harmless=frozenset(
            {
                "language", "use_split_rules", "extend_abbreviations", "skip_empty_documents",
                "tokenizer_encoding",
            }
        ),
        fixed={
            "split_by": ("word",), "split_threshold": (0,), "respect_sentence_boundary": (False,),
            "splitting_function": (None,),
        },
    ),
    "SentenceTransformersDocumentEmbedder": _embedder("document_embedder"),
    "OpenAIDocumentEmbedder": _embedder("document_embedder"),
    "HuggingFaceAPIDocumentEmbedder": _embedder("document_embedder"),
    "SentenceTransformersTextEmbedder": _embedder("text_embedder"),
    "OpenAITextEmbedder": _embedder("text_embedder"),
    "HuggingFaceAPITextEmbedder": _embedder("text_embedder"),
    "DocumentWriter": KnownComponent(
        "writer", used=frozenset({"document_store"}), harmless=frozenset({"policy"})
    ),
    "InMemoryEmbeddingRetriever": KnownComponent(
        "retriever",
        used=frozenset({"document_store", "top_k"}),
        harmless=frozenset({"filter_policy", "scale_score", "return_embedding"}),
        fixed={"filters": (None, {})},
    ),
    "TransformersSimilarityRanker": _RANKER,
    "SentenceTransformersSimilarityRanker": _RANKER,
    "PromptBuilder": KnownComponent(
        "prompt", used=frozenset({"template"}),
        harmless=frozenset({"required_variables", "variables"}),
    ),
    "ChatPromptBuilder": KnownComponent(
        "prompt", used=frozenset({"template"}),
        harmless=frozenset({"required_variables", "variables"}),
    ),
    "OpenAIGenerator": _generator_of_openai(),
    "OpenAIChatGenerator": _generator_of_openai(),
    "HuggingFaceLocalGenerator": _generator(),
    "HuggingFaceLocalChatGenerator": _generator(),
    "HuggingFaceAPIGenerator": _generator(),
    "HuggingFaceAPIChatGenerator": _generator(),
    "AnswerBuilder": KnownComponent(
        "answers",
        harmless=frozenset({"return_only_referenced_documents", "expand_reference_ranges"}),
        fixed={"pattern": (None,), "reference_pattern": (None,), "last_message_only": (False,)},
    ),
}  # fmt: skip

INPUTS: Mapping[Role, tuple[str, ...]] = {
    "converter": ("sources",), "splitter": ("documents",), "document_embedder": ("documents",),
    "text_embedder": ("text",), "writer": ("documents",), "retriever": ("query_embedding",),
    "ranker": ("query", "documents"), "generator": ("prompt", "messages"), "prompt": (),
    "answers": ("replies", "query", "documents", "meta"),
}  # fmt: skip
"""The sockets that may be connected; those of a prompt are its variables."""

OUTPUTS: Mapping[Role, tuple[str, ...]] = {
    "converter": ("documents",), "splitter": ("documents",), "document_embedder": ("documents",),
    "text_embedder": ("embedding",), "writer": (), "retriever": ("documents",),
    "ranker": ("documents",), "generator": ("replies",), "prompt": ("prompt",),
    "answers": ("answers",),
}  # fmt: skip
