"""Generates the reference of the SDK from its source (``make docs``).

``python -m quire.programs.sdk_reference > docs/reference/sdk.md``
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from quire.core.decoding import Dist
from quire.programs import sdk
from quire.programs.guide import markdown
from quire.programs.reference import body, plain
from quire.programs.sdk import dists

_INTRODUCTION = """\
# SDK

Generated from the source by `python -m quire.programs.sdk_reference`; do not edit.

The higher-level interface for programs: `from quire.programs.sdk import Context, inferlet`. It uses
only the [programming interface](api.md) and is the same natively and in the sandbox. Errors are
those of `quire.core.errors`: catch `QuireError` for all of them.
"""

SECTIONS: Mapping[str, tuple[Callable[..., Any], ...]] = {
    "Programs": (sdk.inferlet,),
    "Contexts": (
        sdk.Context,
        sdk.Generation,
        sdk.Generated,
        sdk.ScoredStep,
        sdk.StreamingWindow,
    ),
    "Conversations": (sdk.Conversation, sdk.Answering),
    "Tools": (sdk.Tool, sdk.Toolbox, sdk.mcp_tools),
    "Samplers": (sdk.greedy, sdk.temperature),
    "Grammars": (sdk.json_schema, sdk.regex, sdk.lark, sdk.choice),
    "Loops": (sdk.steps, sdk.ends, sdk.verify, sdk.Verified),
    "Distributions": (Dist, dists.log_probs, dists.bound, dists.softmax, dists.best, dists.draw),
}
"""The documented functions and classes of the SDK by heading. All are documented except ``Sees``, a
function type that ``Context.next_dist`` explains."""


_NOTES = {
    "Distributions": "What `Context.next_dist` returns, and arithmetic on it: "
    "`from quire.programs.sdk.dists import Dist, log_probs`."
}
"""The text below a heading whose entries are imported from elsewhere."""


class _Bare:
    """An annotation that is shown without quotation marks."""

    def __init__(self, annotation: Any) -> None:
        self._text = plain(annotation)

    def __repr__(self) -> str:
        return self._text


def render() -> str:
    """The whole page, Markdown."""
    lines = [_INTRODUCTION]
    for heading, entries in SECTIONS.items():
        lines += [f"## {heading}", ""]
        if heading in _NOTES:
            lines += [_NOTES[heading], ""]
        for entry in entries:
            lines += _class(entry) if isinstance(entry, type) else _function(entry.__name__, entry)
    return "\n".join(lines).rstrip() + "\n"


def _class(entry: type) -> Iterator[str]:
    yield from _block(f"### {entry.__name__}", _call(entry.__name__, entry, skip=0))
    yield from markdown(_about(entry), "python")
    for name, member in vars(entry).items():
        if name.startswith("_"):
            continue
        shown = f"{entry.__name__}.{name}"
        match member:
            case property():
                result = plain(inspect.signature(member.fget).return_annotation)  # type: ignore[arg-type]
                yield from _block(f"#### {name}", f"{shown} -> {result}")
                yield from [body(member.fget), ""]  # type: ignore[arg-type]
            case classmethod() | staticmethod():
                yield from _function(name, member.__func__, shown, skip=1, level=4)
            case _ if inspect.isfunction(member):
                yield from _function(name, member, shown, skip=1, level=4)


def _function(
    name: str, function: Callable[..., Any], shown: str = "", *, skip: int = 0, level: int = 3
) -> Iterator[str]:
    if inspect.getdoc(function) is None:
        return  # its name suffices
    yield from _block(f"{'#' * level} {name}", _call(shown or name, function, skip))
    text, mark, raises = body(function).partition("\n\nRaises")
    yield from markdown(text, "python")
    if mark:
        yield from [f"Raises{raises}", ""]


def _block(heading: str, code: str) -> list[str]:
    return [heading, "", "```python", code, "```", ""]


def _call(name: str, function: Callable[..., Any], skip: int) -> str:
    signature = inspect.signature(function)
    parameters = [
        parameter.replace(annotation=_Bare(parameter.annotation))
        if parameter.annotation is not parameter.empty
        else parameter
        for parameter in list(signature.parameters.values())[skip:]
    ]
    empty = inspect.Signature.empty
    text = str(signature.replace(parameters=parameters, return_annotation=empty))
    text = text.replace(repr(sdk.greedy()), "greedy()").replace("<factory>", "...")
    result = signature.return_annotation
    if isinstance(function, type) or result is empty:
        return name + text
    if inspect.iscoroutinefunction(function):
        name = f"await {name}"
    return f"{name}{text} -> {plain(result)}"


def _about(entry: type) -> str:
    """The docstring of a class, with the module's docstring inserted where it refers to that."""
    text = inspect.getdoc(entry) or ""
    said, refers, rest = text.partition("See the module docstring.")
    if refers:
        module = inspect.cleandoc(sys.modules[entry.__module__].__doc__ or "")
        shown = [part for part in module.split("\n\n") if not part.startswith("Owns ")]
        text = "\n\n".join([said, *shown, rest.strip()]).strip()
    text, mark, raises = text.partition("Raises:\n")
    errors = re.sub(r"^ {4}(\w+): ", r"Raises `\1`: ", raises, flags=re.MULTILINE) if mark else ""
    return "\n\n".join(part for part in (text.strip(), errors.strip()) if part)


if __name__ == "__main__":
    sys.stdout.write(render())
