"""Pipelines of Haystack as applications.

Owns what each component becomes. An indexing pipeline and a query pipeline may be imported
together: documents come with the query here, and the second finds what the first writes.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

from quire.core.errors import InvalidArgument
from quire.programs.workflow.components.model_calls import MAX_TOKENS
from quire.programs.workflow.engines.engine import Engine
from quire.programs.workflow.imports.haystack_building import (
    Building,
    PromptText,
    TemplateOutput,
    add,
    input_of,
    order_stores,
    store_of,
)
from quire.programs.workflow.imports.haystack_reading import (
    HaystackComponent,
    Pipeline,
    Socket,
    read_pipeline,
)
from quire.programs.workflow.imports.haystack_types import INPUTS, Role
from quire.programs.workflow.imports.jinja_prompts import read_template
from quire.programs.workflow.template.app import App

logger = logging.getLogger(__name__)

_TOKENS = frozenset({"max_tokens", "max_new_tokens", "max_completion_tokens"})
_GREEDY: Mapping[str, tuple[Any, ...]] = {
    "temperature": (0, 0.0, None), "n": (1, None), "do_sample": (False, None),
    "return_full_text": (False,),
}  # fmt: skip


def import_pipelines(paths: Sequence[Path], name: str) -> App:
    """Make one application of all pipelines in the files, and log what it does differently.

    A component's input that nothing is connected to is an input of the query, by its own name, as
    in ``Pipeline.run({"question": ...})``; the documents that a converter reads are ``documents``.

    Raises:
        InvalidArgument: something without a counterpart; the error names it and the remedy.
    """
    pipeline = _joined([read_pipeline(path) for path in paths])
    building = Building(pipeline)
    for one in _ordered(pipeline):
        _MAKERS[one.known.role](building, one)
    order_stores(building)
    _check_used(pipeline)
    app = App(name, building.engines.values(), "A pipeline of Haystack.")
    app.update_template(building.nodes)
    for note in [*pipeline.notes, *building.notes]:
        logger.warning("%s", note)
    return app


def _check_used(pipeline: Pipeline) -> None:
    """Refuse a prompt that no generator reads: here only a model makes a text of it."""
    read = {one.component for one in pipeline.senders.values()}
    for name, part in pipeline.parts.items():
        if part.known.role == "prompt" and name not in read:
            raise InvalidArgument(
                f"nothing reads the prompt of {name}: connect it to a generator, or leave the "
                "component out",
                param=name,
            )
    if not pipeline.parts:
        raise InvalidArgument("the pipeline has no components: give some")


def _joined(pipelines: Sequence[Pipeline]) -> Pipeline:
    parts: dict[str, HaystackComponent] = {}
    senders: dict[Socket, Socket] = {}
    for one in pipelines:
        for name in one.parts:
            if name in parts:
                raise InvalidArgument(f"two pipelines have a component {name!r}: rename one")
        parts.update(one.parts)
        senders.update(one.senders)
    return Pipeline(parts, senders, [note for one in pipelines for note in one.notes])


def _ordered(pipeline: Pipeline) -> list[HaystackComponent]:
    before: dict[str, set[str]] = {name: set() for name in pipeline.parts}
    for receiver, sender in pipeline.senders.items():
        before[receiver.component].add(sender.component)
    try:
        return [pipeline.parts[name] for name in TopologicalSorter(before).static_order()]
    except CycleError as exc:
        raise InvalidArgument(
            f"the components {', '.join(exc.args[1])} wait for one another: loops are not imported"
        ) from exc


# -- components --------------------------------------------------------------------------------


def _converter(building: Building, part: HaystackComponent) -> None:
    documents = input_of(building, part, "sources", "documents", asked="documents")
    add(building, part, "parser", {documents.name: "documents"}, "documents", "documents")


def _splitter(building: Building, part: HaystackComponent) -> None:
    documents = input_of(building, part, "documents", "documents")
    config = {
        "chunk_size": part.used.get("split_length", 200),
        "overlap": part.used.get("split_overlap", 0),
    }
    add(building, part, "chunker", {documents.name: "documents"}, "documents", "texts", config)


def _document_embedder(building: Building, part: HaystackComponent) -> None:
    texts = input_of(building, part, "documents", "texts")
    made = add(
        building, part, "embedding", {texts.name: "texts"}, "documents", "vectors",
        {"truncate": True}, batchable=True,
    )  # fmt: skip
    building.values[Socket(part.name, "documents")] = TemplateOutput(texts.name, "texts", made.name)


def _text_embedder(building: Building, part: HaystackComponent) -> None:
    text = input_of(building, part, "text", "text")
    config = {"truncate": True}
    add(building, part, "embedding", {text.name: "text"}, "embedding", "vectors", config)


def _writer(building: Building, part: HaystackComponent) -> None:
    texts = input_of(building, part, "documents", "texts")
    if not texts.vectors:
        raise InvalidArgument(
            f"{part.name} writes documents without embeddings: connect an embedder of documents "
            "before it",
            param=part.name,
        )
    store = store_of(building, part)
    inputs = {texts.name: "texts", texts.vectors: "vectors"}
    config = {"operation": "ingest"}
    add(building, part, store, inputs, "written", "done", config, batchable=True)
    building.writers.setdefault(store, []).append(building.nodes[-1])


def _retriever(building: Building, part: HaystackComponent) -> None:
    vectors = input_of(building, part, "query_embedding", "vectors")
    store = store_of(building, part)
    config = {"operation": "search", "top_k": part.used.get("top_k", 10)}
    add(building, part, store, {vectors.name: "vectors"}, "documents", "texts", config)
    building.readers.setdefault(store, []).append(building.nodes[-1])


def _ranker(building: Building, part: HaystackComponent) -> None:
    query = input_of(building, part, "query", "text")
    texts = input_of(building, part, "documents", "texts")
    config = {"top_n": part.used.get("top_k", 10), "truncate": True}
    inputs = {query.name: "text", texts.name: "texts"}
    add(building, part, "rerank", inputs, "documents", "texts", config)


def _prompt(building: Building, part: HaystackComponent) -> None:
    template, system = part.used.get("template"), None
    where = f"the template of {part.name}"
    if isinstance(template, list):
        template, system = _messages(template, where)
    if not isinstance(template, str):
        raise InvalidArgument(f"{where} is missing: give a text", param=part.name)
    asked = read_template(template, where)
    inputs: dict[str, str] = {}
    called: dict[str, str] = {}
    for names, kind in ((asked.texts, "text"), (asked.firsts, "text"), (asked.lists, "texts")):
        for name in names:
            given = input_of(building, part, name, kind)
            is_reply = Socket(part.name, name) in building.pipeline.senders
            if kind == "text" and is_reply != (name in asked.firsts):
                what = "the replies of a generator" if is_reply else "a text of the query"
                written = f"{name}[0]" if is_reply else name
                raise InvalidArgument(
                    f"{where}: {name!r} is {what}: write {{{{ {written} }}}}", param=part.name
                )
            called[name] = given.name
            inputs[given.name] = kind
    for receiver in building.pipeline.senders:
        if receiver.component == part.name and receiver.name not in called:
            raise InvalidArgument(
                f"{where} does not use {receiver.name!r}, which is connected: use it, or leave the "
                "connection out",
                param=part.name,
            )
    building.values[Socket(part.name, "prompt")] = PromptText(
        asked.prompt(called), inputs, asked.separator, system
    )


def _messages(template: list[Any], where: str) -> tuple[str, str | None]:
    """Return the text of the user's message, and that of a system message before it."""
    roles: list[str] = []
    texts: list[str] = []
    for one in template:
        content = one.get("content", one.get("_content")) if isinstance(one, dict) else None
        pieces = content if isinstance(content, list) else [{"text": content}]
        found = [piece.get("text") for piece in pieces if isinstance(piece, dict)]
        said = [text for text in found if isinstance(text, str)]
        if len(said) < len(pieces) or any(len(piece) > 1 for piece in pieces):
            raise InvalidArgument(f"{where} has a message that is not of texts: {one!r:.80}")
        roles.append(str(one.get("role", one.get("_role"))))
        texts.append("".join(said))
    if roles not in (["user"], ["system", "user"]):
        raise InvalidArgument(
            f"{where} has messages of {', '.join(roles)}: a prompt here is one message of the "
            "user, with one of the system before it"
        )
    system = texts[0] if len(texts) > 1 else None
    if system is not None and ("{{" in system or "{%" in system):
        raise InvalidArgument(f"{where}: the system message must be the same for every query")
    return texts[-1], system


def _generator(building: Building, part: HaystackComponent) -> None:
    sockets = [Socket(part.name, name) for name in INPUTS["generator"]]
    sender = next((building.pipeline.senders[one] for one in sockets
                   if one in building.pipeline.senders), None)  # fmt: skip
    prompt = building.values.get(sender) if sender is not None else None
    if not isinstance(prompt, PromptText):
        raise InvalidArgument(
            f"{part.name} has no prompt builder before it: connect a PromptBuilder or a "
            "ChatPromptBuilder",
            param=part.name,
        )
    system = part.used.get("system_prompt") or prompt.system
    config = {"prompt": prompt.text, **_generation(part)}
    if config.get("max_tokens") is None:
        config.pop("max_tokens", None)
        building.notes.append(
            f"{part.name}: an answer has at most {MAX_TOKENS} tokens: give max_tokens in "
            "generation_kwargs for another limit"
        )
    if prompt.separator is not None:
        config["separator"] = prompt.separator
    if system is not None:
        config["system"] = system
    add(
        building, part, _model(building, part), prompt.inputs, "replies", "text", config,
        called="answer" if _is_last(building.pipeline, part) else "",
    )  # fmt: skip


def _model(building: Building, part: HaystackComponent) -> str:
    """Name the engine of a generator: the node's model, or the endpoint that it names."""
    url, model = part.used.get("api_base_url"), part.used.get("model")
    if url is None:
        if model is not None:
            building.notes.append(f"{part.name}: the node's own model is used in place of {model}")
        return "llm"
    config = {"base_url": url, "model": model}
    key = part.used.get("api_key")
    if key is not None:
        names = key.get("env_vars") if isinstance(key, dict) else None
        if not isinstance(names, list) or len(names) != 1:
            raise InvalidArgument(
                f"{part.name}.api_key is {key!r:.80}: name one environment variable",
                param=part.name,
            )
        config["api_key_env"] = names[0]
    for name, ours in (("timeout", "timeout_s"), ("max_retries", "retries")):
        if part.used.get(name) is not None:
            config[ours] = part.used[name]
    called = "llm_" + re.sub(r"\W", "_", part.name)
    building.engines[called] = Engine("llm", config, name=called)
    return called


def _is_last(pipeline: Pipeline, part: HaystackComponent) -> bool:
    """Whether ``part`` is the only generator whose replies go into no prompt."""
    asked = {
        sender.component
        for receiver, sender in pipeline.senders.items()
        if pipeline.parts[receiver.component].known.role == "prompt"
    }
    generators = (one.name for one in pipeline.parts.values() if one.known.role == "generator")
    return [name for name in generators if name not in asked] == [part.name]


def _generation(part: HaystackComponent) -> dict[str, Any]:
    config: dict[str, Any] = {}
    given = part.used.get("generation_kwargs") or {}
    if not isinstance(given, dict):
        raise InvalidArgument(
            f"{part.name}.generation_kwargs is {given!r:.60}: give a mapping", param=part.name
        )
    for key, value in given.items():
        if key in _TOKENS:
            config["max_tokens"] = value
        elif key not in _GREEDY:
            raise InvalidArgument(
                f"{part.name}.generation_kwargs has {key!r}; models of workflows take "
                f"{', '.join(sorted(_TOKENS))} and answer greedily: leave it out",
                param=part.name,
            )
        elif value not in _GREEDY[key]:
            raise InvalidArgument(
                f"{part.name}.generation_kwargs.{key} is {value!r}: models of workflows answer "
                "greedily, once: leave it out",
                param=part.name,
            )
    return config


def _answers(building: Building, part: HaystackComponent) -> None:
    input_of(building, part, "replies", "text")


_MAKERS: Mapping[Role, Callable[[Building, HaystackComponent], None]] = {
    "converter": _converter, "splitter": _splitter, "document_embedder": _document_embedder,
    "text_embedder": _text_embedder, "writer": _writer, "retriever": _retriever, "ranker": _ranker,
    "prompt": _prompt, "generator": _generator, "answers": _answers,
}  # fmt: skip
