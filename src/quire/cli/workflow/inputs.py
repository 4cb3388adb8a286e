"""Turns the values of ``quire workflow`` into a query's inputs and configuration."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from quire.cli.console import escaped, messages
from quire.core.errors import InvalidArgument
from quire.node.documents.readers import DocumentReaders
from quire.programs.services.documents import (
    MAX_FILE_BYTES,
    SUFFIXES,
    DocumentService,
    decoded,
    kind_of,
)
from quire.programs.workflow import App
from quire.programs.workflow.graphs.values import ValueType
from quire.programs.workflow.running import with_texts

_NUM_NAMED = 5

SAMPLE_WORDS = 256 * 24
"""Words of the document for which a graph is drawn if none is given."""


def query_inputs(
    given: list[str],
    question: str | None,
    documents: list[Path] | None,
    texts: Collection[str] = (),
) -> dict[str, Any]:
    """Return the query's inputs by name, as far as they are given. ``texts``: the inputs that are
    texts, so that 2 is one."""
    found: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise InvalidArgument(f"--input {text!r}: write NAME=VALUE, e.g. city=Oslo")
        found[name] = value if name in texts else _value(value)
    if question is not None:
        found["question"] = question
    if documents:
        found["documents"] = _documents(documents)
    return found


def texts_of(app: App) -> set[str]:
    """Return the names of the inputs that are texts."""
    return {name for name, kind in app.query_inputs.items() if kind is ValueType.TEXT}


def texts_of_schema(schema: Mapping[str, Any]) -> set[str]:
    """Return them for the schema of a query, as a node shows it."""
    found: Mapping[str, Mapping[str, Any]] = schema.get("properties", {})
    return {name for name, one in found.items() if one.get("type") == "string"}


_OPTIONS = {"question": "--question TEXT", "documents": "--documents PATH"}


def require_inputs(app: App, query: Mapping[str, Any]) -> None:
    """Raise ``InvalidArgument`` for an input that was not given, with the option that gives it."""
    for name in app.query_inputs:
        if name not in query:
            option = _OPTIONS.get(name, f"--input {name}=VALUE")
            raise InvalidArgument(f"{app.name}: the input {name!r} is missing: give {option}")


def example_inputs(app: App) -> dict[str, Any]:
    """Return inputs for a drawing."""
    samples: Mapping[ValueType, Any] = {
        ValueType.TEXT: "Who?",
        ValueType.TEXTS: ["Who?"],
        ValueType.BOOLEAN: True,
        ValueType.OBJECT: {},
        ValueType.DOCUMENTS: [{"name": "sample", "text": "word " * SAMPLE_WORDS}],
    }
    return {name: samples.get(kind) for name, kind in app.query_inputs.items()}


def settings_by_component(given: list[str]) -> dict[str, dict[str, Any]]:
    """Return ``COMPONENT.KEY=VALUE`` as changes by component."""
    config: dict[str, dict[str, Any]] = {}
    for setting in given:
        place, equals, text = setting.partition("=")
        component, dot, key = place.partition(".")
        if not (equals and dot and component and key):
            raise InvalidArgument(
                f"--set {setting!r}: write COMPONENT.KEY=VALUE, e.g. answer.synthesis=tree"
            )
        config.setdefault(component, {})[key] = _value(text)
    return config


def _value(text: str) -> Any:
    """Return the value of a setting; JSON is read as JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _files_of(folder: Path) -> list[Path]:
    """Return the documents of ``folder`` in the order of their names. Hidden files and folders are
    skipped; files of other kinds are named on stderr.

    Raises:
        InvalidArgument: there is no document.
    """
    documents: list[Path] = []
    others: list[str] = []
    for file in sorted(folder.rglob("*")):
        place = file.relative_to(folder)
        if any(part.startswith(".") for part in place.parts) or not file.is_file():
            continue
        if file.suffix.lower() in SUFFIXES:
            documents.append(file)
        else:
            others.append(str(place))
    if not documents:
        raise InvalidArgument(
            f"{folder} has no document: give a folder with files that end in {', '.join(SUFFIXES)}"
        )
    if others:
        more = f" and {len(others) - _NUM_NAMED} more" if len(others) > _NUM_NAMED else ""
        messages().print(
            escaped(f"not read, of no known kind: {', '.join(others[:_NUM_NAMED])}{more}")
        )
    return documents


def _documents(paths: list[Path]) -> list[dict[str, str]]:
    """Return the files, in their order, with those of folders."""
    files = [one for path in paths for one in (_files_of(path) if path.is_dir() else [path])]
    found: list[dict[str, str]] = []
    for file in files:
        content = _content(file)
        if kind_of(file.name) == "text":
            found.append({"name": file.name, "text": decoded(str(file), content)})
        else:
            found.append({"name": file.name, "base64": base64.b64encode(content).decode()})
    return found


def _content(file: Path) -> bytes:
    """Raise ``InvalidArgument`` with the name that was given if the file cannot be a document."""
    if file.parts[:1] in (("http:",), ("https:",)):
        raise InvalidArgument(
            f"--documents {file.parts[0]}//{'/'.join(file.parts[1:])} is an address, and none is "
            "fetched: download the document and name the file"
        )
    try:
        num_bytes = file.stat().st_size
        if num_bytes > MAX_FILE_BYTES:
            raise InvalidArgument(
                f"{file} has {num_bytes} bytes; a document has at most {MAX_FILE_BYTES}: divide it"
            )
        return file.read_bytes()
    except FileNotFoundError as exc:
        raise InvalidArgument(f"there is no file or folder {file}: check its name") from exc
    except OSError as exc:
        raise InvalidArgument(f"{file} cannot be read: {exc.strerror}") from exc


async def with_document_texts(
    app: App, query: Mapping[str, Any], changes: Mapping[str, Any]
) -> dict[str, Any]:
    """Read the query's documents without a node."""
    readers = DocumentReaders()
    try:
        return await with_texts(DocumentService(readers.read).read, app, query, changes)
    finally:
        await asyncio.to_thread(readers.close)
