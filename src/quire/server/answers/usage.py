"""Counts the tokens of one request as its chunks pass."""

from __future__ import annotations

from quire.programs.builtin import ChoiceChunk
from quire.server.schemas.generation import (
    CompletionTokensDetails,
    PromptTokensDetails,
    Usage,
)


class UsageCounter:
    """``num_prompt_tokens``: of all prompts, each counted once for any ``n``."""

    def __init__(self, num_prompt_tokens: int) -> None:
        self._num_prompt = num_prompt_tokens
        self._num_cached = 0
        self._num_completion = 0

    def add(self, chunk: ChoiceChunk) -> None:
        self._num_cached += chunk.num_cached_tokens
        self._num_completion += len(chunk.token_ids)

    def usage(self, num_reasoning: int | None = None) -> Usage:
        usage = Usage(
            prompt_tokens=self._num_prompt,
            completion_tokens=self._num_completion,
            total_tokens=self._num_prompt + self._num_completion,
            prompt_tokens_details=PromptTokensDetails(
                # the cached tokens of an answer that goes on here may be its own
                cached_tokens=min(self._num_cached, self._num_prompt)
            ),
        )
        if num_reasoning is not None:
            usage.completion_tokens_details = CompletionTokensDetails(
                reasoning_tokens=num_reasoning
            )
        return usage
