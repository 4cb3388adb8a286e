"""Runs two applications as a user of LlamaIndex writes them, against any OpenAI server; it runs in
``.venv-clients``.

Standard input has a job a line: ``url``, ``key``, ``core``, ``app``, ``question``, ``documents``
and ``config``. For each a line of JSON is written with ``answer`` and ``seconds``, from the
documents to the answer. Models, prompts, chunks and numbers are those of Quire's applications.
Clients are
made before the clock starts; what LlamaIndex can send at the same time, it does.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from typing import Any

import httpx
from llama_index.core import Document, PromptTemplate, VectorStoreIndex
from llama_index.core.node_parser import TextSplitter
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.core.schema import NodeWithScore, QueryBundle
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike

ASK = PromptTemplate("Question: {query_str}\nContext: {context_str}\nQuestion: {query_str}")
REFINE = PromptTemplate(
    "Question: {query_str}\nContext: {context_msg}\n"
    "Answer so far: {existing_answer}\nRefine the answer.\nQuestion: {query_str}",
    function_mappings={"existing_answer": lambda **given: given["existing_answer"].strip()},
)
EXPAND = "Write 3 search queries for: "
CONTEXT_WINDOW = 8192


class WordSplitter(TextSplitter):
    """Chunks of words and marks that overlap."""

    chunk_size: int = 256
    overlap: int = 30

    def split_text(self, text: str) -> list[str]:
        places = [match.span() for match in re.finditer(r"\w+|[^\w\s]", text)]
        pieces, step = [], self.chunk_size - self.overlap
        for first in range(0, max(len(places) - self.overlap, min(len(places), 1)), step):
            last = min(first + self.chunk_size, len(places)) - 1
            pieces.append(text[places[first][0] : places[last][1]])
        return pieces


class Reranker(BaseNodePostprocessor):
    """The server's ``/v1/rerank``."""

    url: str
    key: str
    model: str
    top_n: int

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        assert query_bundle is not None
        body = {
            "model": self.model,
            "query": query_bundle.query_str,
            "documents": [one.get_content() for one in nodes],
            "top_n": self.top_n,
            "truncate_prompt_tokens": -1,
        }
        headers = {"Authorization": f"Bearer {self.key}"}
        answer = httpx.post(f"{self.url}/v1/rerank", json=body, headers=headers, timeout=None)
        answer.raise_for_status()
        return [nodes[one["index"]] for one in answer.json()["results"]]


class Application:
    def __init__(self, job: dict[str, Any]) -> None:
        self._config: dict[str, Any] = job["config"]
        api = {"api_base": f"{job['url']}/v1", "api_key": job["key"]}
        chat = {
            **api, "model": job["core"], "is_chat_model": True, "temperature": 0.0,
            "context_window": CONTEXT_WINDOW, "timeout": 600.0,
        }  # fmt: skip
        self._writer = OpenAILike(**chat, max_tokens=self._config["max_tokens"])
        self._expander = OpenAILike(**chat, max_tokens=256)
        self._embedding = OpenAILikeEmbedding(
            **api,
            model_name="embed",
            embed_batch_size=128,
            timeout=600.0,
            additional_kwargs={"extra_body": {"truncate_prompt_tokens": -1}},
        )
        self._ranker = Reranker(
            url=job["url"], key=job["key"], model="rank", top_n=self._config["top_n"]
        )

    async def naive(self, question: str, documents: list[str]) -> str:
        """Read the nearest chunks together."""
        index = self._indexed(documents)
        nodes = await index.as_retriever(similarity_top_k=self._config["top_k"]).aretrieve(question)
        return await self._answered("compact", question, nodes)

    async def advanced(self, question: str, documents: list[str]) -> str:
        """Send several queries, rank what they find, and refine an answer."""
        index = self._indexed(documents)
        retriever = index.as_retriever(similarity_top_k=self._config["top_k"])
        queries = await self._expanded(question)
        found = await asyncio.gather(*map(retriever.aretrieve, queries))
        nodes = {one.node_id: one for nodes in found for one in nodes}
        best = self._ranker.postprocess_nodes(list(nodes.values()), query_str=question)
        return await self._answered("refine", question, best)

    def _indexed(self, documents: list[str]) -> VectorStoreIndex:
        return VectorStoreIndex.from_documents(
            [Document(text=one) for one in documents],
            transformations=[WordSplitter()],
            embed_model=self._embedding,
        )

    async def _expanded(self, question: str) -> list[str]:
        schema = {"name": "queries", "schema": self._config["queries"]}
        answer = await self._expander.acomplete(
            EXPAND + question, response_format={"type": "json_schema", "json_schema": schema}
        )
        queries: list[str] = json.loads(answer.text)
        return queries

    async def _answered(self, mode: str, question: str, nodes: list[NodeWithScore]) -> str:
        synthesizer = get_response_synthesizer(
            llm=self._writer, response_mode=mode, text_qa_template=ASK, refine_template=REFINE
        )
        return str(await synthesizer.asynthesize(question, nodes))


def main() -> None:
    with asyncio.Runner() as runner:
        for line in sys.stdin:
            job = json.loads(line)
            application = Application(job)
            apps = {"naive-rag": application.naive, "advanced-rag": application.advanced}
            texts = [one["text"] for one in job["documents"]]
            began_s = time.perf_counter()
            answer = runner.run(apps[job["app"]](job["question"], texts))
            took_s = time.perf_counter() - began_s
            print(json.dumps({"answer": answer, "seconds": took_s}), flush=True)


if __name__ == "__main__":
    main()
