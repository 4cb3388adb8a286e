"""An ordinary client: the ``openai`` package, pointed at a node.

    quire serve
    python examples/chat_client.py "What is Quire?"

Nothing here knows Quire but the address. A node without API keys takes any key.
"""

from __future__ import annotations

import os
import sys

from openai import OpenAI

BASE_URL = "http://127.0.0.1:8000/v1"


def main(question: str) -> None:
    client = OpenAI(
        base_url=os.environ.get("OPENAI_BASE_URL", BASE_URL),
        api_key=os.environ.get("OPENAI_API_KEY", "none"),
    )
    model = client.models.list().data[0].id
    stream = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": question}],
        stream=True,
        stream_options={"include_usage": True},
    )
    for chunk in stream:
        if chunk.choices:
            print(chunk.choices[0].delta.content or "", end="", flush=True)
        elif chunk.usage is not None:
            print(
                f"\n[{model}: {chunk.usage.prompt_tokens} + {chunk.usage.completion_tokens} tokens]"
            )


if __name__ == "__main__":
    main(" ".join(sys.argv[1:]) or "Who are you?")
