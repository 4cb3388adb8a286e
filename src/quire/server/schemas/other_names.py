"""Fields of this API under the names that other servers use, or used, for them.

Such a field is refused like every unknown field; the error names the field to use instead.
"""

from __future__ import annotations

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
    # the openai package, which takes it apart
    "extra_body": "its fields beside the others",
    # what some services have for a variable of the template
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
    "best_of": "candidates are not compared here: draw n and choose",
    "chat_template": "templates are the model's own, for one of yours render it and send a prompt",
    "early_stopping": "there is no beam search in requests",
    "guided_decoding_backend": "there is one way to constrain an answer",
    "kv_transfer_params": "pages are not moved by requests",
    "length_penalty": "there is no beam search in requests",
    "logits_processors": "a processor that is installed beside the engine is named in processors",
    "logprob_token_ids": "log probabilities are those of the best tokens",
    "media_io_kwargs": "images are read in one way",
    "mm_processor_kwargs": "images are read in one way",
    "repetition_detection": "see dry_multiplier and repetition_penalty",
    "return_tokens_as_token_ids": "see return_token_ids",
    "spaces_between_special_tokens": "special tokens are told as they are spelled",
    "structural_tag": "a grammar says the same",
    "thinking_token_budget": "reasoning has no limit of its own",
    "use_beam_search": "launch the program beam_search",
    "vllm_xargs": "there is nothing that would read them",
    # OpenAI
    "audio": "answers are text",
    "moderation": "nothing is moderated here",
    "prediction": "nothing is predicted from a text",
    "web_search_options": "no tool runs here: send one as a function, and run its calls yourself",
}


def why_not_served(field: str) -> str | None:
    """For a field of other servers that is not supported here: the reason."""
    return _NOT_SERVED.get(field)


def our_name(field: str) -> str | None:
    """The field of chat completions and completions to use instead of ``field``."""
    constraint = _CONSTRAINTS.get(field)
    if constraint is None:
        return _OTHERS.get(field)
    dialect = ", a grammar in Lark's form" if constraint == "grammar" else ""
    return f'"structured_outputs": {{"{constraint}": ...}}{dialect}'
