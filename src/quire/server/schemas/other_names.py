"""Fields of this API under the names that other servers use, or used, for them.

Such a field is refused like every unknown field; the error names the field to use instead.
"""

from __future__ import annotations

from collections.abc import Collection

_CONSTRAINTS = {
    # vLLM, formerly
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    # SGLang
    "json_schema": "json",
    "regex": "regex",
    "ebnf": "grammar",
}

_OTHERS = {
    # OpenAI, formerly
    "functions": '"tools": [{"type": "function", "function": ...}]',
    "function_call": '"tool_choice"',
    # the openai package, which sends its content as fields
    "extra_body": "its fields beside the others",
    # some services: a field for a variable of the template
    "enable_thinking": '"chat_template_kwargs": {"enable_thinking": ...}',
    # SGLang and TGI
    "lora_path": '"model": the name of the adapter',
    "max_new_tokens": '"max_tokens"',
    "rid": "the header x-request-id",
    # vLLM
    "prompt_logprobs": '"echo": true with "logprobs", at /v1/completions',
    "request_id": "the header x-request-id",
}


_NOT_SERVED = {
    # vLLM
    "best_of": "the server does not rank candidates: request n of them and choose",
    "chat_template": "only the model's own template is used: render yours and send a prompt",
    "early_stopping": "requests have no beam search: launch the program beam_search",
    "guided_decoding_backend": "there is only one backend for structured outputs",
    "kv_transfer_params": "requests cannot transfer KV pages",
    "length_penalty": "requests have no beam search: launch the program beam_search",
    "logits_processors": "name an installed processor in processors",
    "logprob_token_ids": "only the log probabilities of the best tokens are available",
    "media_io_kwargs": "the decoding of images cannot be configured",
    "mm_processor_kwargs": "the image processor cannot be configured",
    "repetition_detection": "see dry_multiplier and repetition_penalty",
    "return_tokens_as_token_ids": "see return_token_ids",
    "spaces_between_special_tokens": "special tokens are shown as they are spelled",
    "structural_tag": "write it as a grammar in structured_outputs",
    "thinking_token_budget": "reasoning has no separate limit: set max_tokens",
    "use_beam_search": "launch the program beam_search",
    "vllm_xargs": "there are no plugins that would use them",
    # OpenAI
    "audio": "answers are text",
    "context_management": (
        "the server compacts no conversations (at /v1/responses truncation auto drops the oldest "
        "turns)"
    ),
    "moderation": "there is no moderation",
    "prediction": "predicted outputs are not supported",
    "web_search_options": "the server runs no tools: send a function, and run its calls yourself",
}


_NO_PROMPTS = "the server stores no prompts: send the text in instructions and input"
"""Said of ``prompt`` at ``/v1/responses``, where OpenAI takes a stored prompt by its id."""

_SAME = (
    ("messages", "input", "prompt"),
    ("max_tokens", "max_output_tokens"),
    ("max_completion_tokens", "max_output_tokens", "max_tokens"),
    ("response_format", "text"),
    ("reasoning_effort", "reasoning"),
    ("system", "instructions"),
    ("stop_sequences", "stop"),
)
"""Fields of OpenAI's and Anthropic's routes that mean the same in different routes."""


def why_not_served(field: str, fields: Collection[str] = ()) -> str | None:
    """Return why a field of other servers is not supported here; ``None`` for any other field.
    ``fields``: those of the body."""
    if field == "prompt" and {"input", "instructions"} <= set(fields):
        return _NO_PROMPTS
    return _NOT_SERVED.get(field)


def same_in(field: str, fields: Collection[str]) -> str | None:
    """Return the one of ``fields`` that means what ``field`` means in another route, if any."""
    for names in _SAME:
        if field in names:
            for name in names:
                if name in fields:
                    return name
    return None


def our_name(field: str) -> str | None:
    """Return the field of chat completions and completions to use instead of ``field``, if there is
    one."""
    constraint = _CONSTRAINTS.get(field)
    if constraint is None:
        return _OTHERS.get(field)
    dialect = ", a grammar in Lark's form" if constraint == "grammar" else ""
    return f'"structured_outputs": {{"{constraint}": ...}}{dialect}'
