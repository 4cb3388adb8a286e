"""The prompt in which Qwen3-Reranker reads a query and a document, to be answered by yes or no.

Owns the text of that prompt, as its authors publish it. Knows no tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

YES, NO = "yes", "no"
"""The tokens whose logits are compared."""


@dataclass(frozen=True, slots=True)
class PairTemplate:
    """``prefix`` and ``suffix`` contain special tokens; the text between them contains none."""

    prefix: str
    suffix: str
    instruction: str

    def body(self, first: str, second: str, instruction: str | None = None) -> str:
        asked = self.instruction if instruction is None else instruction
        return f"<Instruct>: {asked}\n<Query>: {first}\n<Document>: {second}"


QWEN3_RERANKER = PairTemplate(
    prefix=(
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query "
        'and the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
        "<|im_start|>user\n"
    ),
    suffix="<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
    instruction="Given a web search query, retrieve relevant passages that answer the query",
)
