"""Keys of an encoder's configuration files that may be left unread, and why."""

from __future__ import annotations

from typing import Any

from quire.engine.checkpoint.config_accounting import KeyRefusal, KeyScope, absent, merged, names
from quire.engine.models.known_keys import ANY_MODEL, DECODER

_TRAINING = "used in training only"
_FORM = "how another library computes or gives the same values"
_SIZE = "visible from the shapes of the tensors"

BIDIRECTIONAL = merged(
    [
        ANY_MODEL,
        KeyScope(
            harmless={
                _TRAINING: names(
                    "embedding_dropout mlp_dropout initializer_cutoff_factor output_past "
                    "repad_logits_with_grad sparse_prediction sparse_pred_ignore_index"
                ),
                _FORM: names("deterministic_flash_attn reference_compile"),
                "of a head that predicts words": names("tie_word_embeddings decoder_bias"),
                "of a pooler that is not used": names(
                    "directionality pooler_fc_size pooler_num_attention_heads "
                    "pooler_num_fc_layers pooler_size_per_head pooler_type"
                ),
                "the family has one kind of positions and one name for its norms": names(
                    "position_embedding_type layer_norm_eps"
                ),
            },
            refused={
                "is_causal": absent("attention to earlier tokens alone", False),
                "is_decoder": absent("a decoder", False),
                "quantization_config": absent("quantised weights"),
                "type_vocab_size": absent("token types, which this family does not have", 0, 1),
            },
        ),
    ]
)
"""``config.json`` of BERT, RoBERTa, MPNet and ModernBERT."""

CAUSAL = merged([DECODER, KeyScope(refused={"quantization_config": absent("quantised weights")})])
"""``config.json`` of a decoder."""

POOLING = KeyScope(harmless={_SIZE: names("word_embedding_dimension embedding_dimension")})
_CHAIN = absent("another place in the chain of modules", "sentence_embedding")
DENSE = KeyScope(refused={"module_input_name": _CHAIN, "module_output_name": _CHAIN})
LOGIT_SCORE = KeyScope(
    refused={"module_input_name": absent("another input than the logits", "causal_logits")}
)


def _only_template(value: Any) -> bool:
    return not value or (isinstance(value, dict) and set(value) <= {"chat_template"})


TEXTS = KeyScope(
    harmless={
        _FORM: names("transformer_task modality_config module_output_name unpad_inputs"),
        "where another library finds its files": names(
            "cache_dir tokenizer_name_or_path model_args tokenizer_args config_args"
        ),
    },
    refused={
        "query_length": absent("another limit for queries"),
        "document_length": absent("another limit for documents"),
        "query_expansion": absent("queries that are filled up"),
        "processing_kwargs": KeyRefusal("texts that are prepared in another way", _only_template),
    },
)
"""``sentence_bert_config.json``."""

SETTINGS = KeyScope(
    harmless={"describes the file": names("__version__ model_type similarity_fn_name")},
    refused={"truncate_dim": absent("embeddings that are cut: ask for dimensions in a request")},
)
"""``config_sentence_transformers.json``."""
