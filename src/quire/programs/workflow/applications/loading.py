"""Finds applications by name: shipped ones, and those of a developer's file.

A file's code is executed and trusted.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Any

from quire.core.errors import InvalidArgument
from quire.programs.source_file import source_spec
from quire.programs.tracebacks import one_line, own_traceback
from quire.programs.workflow.applications.advanced_rag import advanced_rag
from quire.programs.workflow.applications.agent import agent
from quire.programs.workflow.applications.contextual_retrieval import contextual_retrieval
from quire.programs.workflow.applications.naive_rag import naive_rag
from quire.programs.workflow.applications.search_generation import search_generation
from quire.programs.workflow.imports import import_pipelines, import_state_graph, is_state_graph
from quire.programs.workflow.template.app import App

APPLICATIONS: Mapping[str, Callable[[], App]] = MappingProxyType(
    {
        "search-generation": search_generation,
        "naive-rag": naive_rag,
        "advanced-rag": advanced_rag,
        "contextual-retrieval": contextual_retrieval,
        "agent": agent,
    }
)
"""The functions that make the shipped applications, each for every node that serves it."""


def names_file(name: str) -> bool:
    """Whether ``name`` stands for a file, and not for a shipped application."""
    file, _, _ = name.partition(":")
    return file.endswith((".py", ".yaml", ".yml"))


def find_application(name: str) -> App:
    """Find the shipped application ``name``; for ``FILE.py:NAME`` that of a file: an ``App``, a
    function that makes one, or LangGraph's ``StateGraph``; for ``FILE.yaml``, or several joined by
    ``+``, that of Haystack's pipelines.

    Raises:
        InvalidArgument: there is no such application, the file cannot be executed, its application
            has no template, or a component of a pipeline has no counterpart.
    """
    if name.endswith((".yaml", ".yml")):
        paths = [Path(one) for one in name.split("+")]
        return import_pipelines(paths, paths[-1].stem)
    file, colon, attribute = name.rpartition(":")
    if colon and file.endswith(".py"):
        return _of_file(Path(file), attribute)
    if name in APPLICATIONS:
        return APPLICATIONS[name]()
    if name.endswith(".py"):
        names = _executed(Path(name))
        raise InvalidArgument(
            f"{name} is a file: name the variable of its application, as in {name}:app; "
            f"{_has(names)}",
            param="workflow",
        )
    near = get_close_matches(name, APPLICATIONS, n=1)
    asked = f" (did you mean {near[0]}?)" if near else ""
    raise InvalidArgument(
        f"no workflow {name!r}{asked}: name one that 'quire workflow list' shows "
        f"({', '.join(APPLICATIONS)}), FILE.py:NAME or a pipeline's FILE.yaml",
        param="workflow",
    )


def find_applications(names: Sequence[str]) -> dict[str, App]:
    """Find several applications; return them by their own names.

    Raises:
        InvalidArgument: see ``find_application``; or two of them have one name.
    """
    found: dict[str, App] = {}
    for name in names:
        app = find_application(name)
        if app.name in found:
            raise InvalidArgument(
                f"two workflows are named {app.name!r}: rename one, or give it once",
                param="workflow",
            )
        found[app.name] = app
    return found


def _of_file(path: Path, attribute: str) -> App:
    names = _executed(path)
    if attribute not in names:
        raise InvalidArgument(f"{path} has no {attribute!r}: {_has(names)}", param="workflow")
    found = names[attribute]
    if callable(found) and not isinstance(found, App):
        try:
            found = found()
        except InvalidArgument:
            raise
        except (Exception, SystemExit) as exc:
            what = f"{path}:{attribute}() does not make an application without arguments"
            raise _not_executed(exc, path.resolve(), what) from exc
    if is_state_graph(found):
        return import_state_graph(found, path.stem)
    if not isinstance(found, App):
        raise InvalidArgument(
            f"{path}:{attribute} is {type(found).__name__}, not an App, a function that makes "
            "one, or a StateGraph: name the variable that has the application",
            param="workflow",
        )
    if not found.nodes:
        raise InvalidArgument(
            f"{path}:{attribute} has no template: call update_template in the file",
            param="workflow",
        )
    return found


def _has(names: Mapping[str, Any]) -> str:
    apps = [name for name, one in names.items() if isinstance(one, App) or is_state_graph(one)]
    return f"it has {', '.join(apps)}" if apps else "no variable of it is an App or a StateGraph"


def _executed(path: Path) -> dict[str, Any]:
    """The names of the module, whose code is executed."""
    path = path.resolve()
    digest = hashlib.sha256(bytes(path)).hexdigest()[:16]
    spec = source_spec(f"quire_workflow_{digest}", path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise InvalidArgument(f"no file {path}: name a Python file", param="workflow")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module  # dataclasses and typing look their module up by name
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as exc:
        raise _not_executed(exc, path, f"{path} cannot be executed") from exc
    finally:
        del sys.modules[module.__name__]
    return vars(module)


def _not_executed(exc: BaseException, path: Path, what: str) -> InvalidArgument:
    remedy = ""
    if isinstance(exc, ModuleNotFoundError):
        remedy = f": install what has it beside Quire, for {sys.executable}"
    text = own_traceback(exc, str(path))
    return InvalidArgument(f"{what}: {one_line(exc)}{remedy}\n{text}", param="workflow")
