"""Fields of ours under the names that other servers have, or had, for them.

Such a field is refused like every unknown one; this says what to write instead.
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


def our_name(field: str) -> str | None:
    """What chat completions and completions want instead of ``field``."""
    constraint = _CONSTRAINTS.get(field)
    if constraint is None:
        return _OTHERS.get(field)
    dialect = ", a grammar in Lark's form" if constraint == "grammar" else ""
    return f'"structured_outputs": {{"{constraint}": ...}}{dialect}'


__all__ = ["our_name"]
