"""Prompts that are written in Jinja, as prompts with named parts.

Owns the small part of Jinja that a prompt with named parts can express: text, ``{{ name }}``,
``{{ name[0] }}`` and a loop over a list that writes ``{{ one.content }}``. Nothing of a template is
executed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import jinja2
from jinja2 import nodes

from quire.core.errors import InvalidArgument
from quire.programs.workflow.graphs.prompts import PromptPart

MAX_CHARS = 1 << 16


class _NotExpressedError(Exception):
    """A prompt with named parts cannot say what ``node`` does."""

    def __init__(self, node: nodes.Node) -> None:
        super().__init__(node)
        self.node = node


@dataclass(slots=True)
class JinjaPrompt:
    """``pieces``: texts and named parts. ``texts``, ``firsts``, ``lists``: the names of the parts
    that are a text, the first element of a list, and a list, whose elements ``separator`` joins."""

    pieces: list[str | PromptPart] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    firsts: list[str] = field(default_factory=list)
    lists: list[str] = field(default_factory=list)
    separator: str | None = None

    def prompt(self, names: Mapping[str, str]) -> str:
        """Return the prompt with named parts. ``names``: the name of each part in the result."""
        return "".join(
            f"{{{names[one.name or '']}}}" if isinstance(one, PromptPart) else _literal(one)
            for one in self.pieces
        )


def read_template(template: str, where: str) -> JinjaPrompt:
    """Read a template; ``InvalidArgument`` names the line that named parts cannot express."""
    if len(template) > MAX_CHARS:
        raise InvalidArgument(
            f"{where} has {len(template)} characters; at most {MAX_CHARS} are read: shorten it"
        )
    try:
        parsed = jinja2.Environment(autoescape=False).parse(template)
    except (jinja2.TemplateSyntaxError, RecursionError) as exc:
        raise InvalidArgument(f"{where} is no template that can be read: {exc}") from exc
    asked = JinjaPrompt()
    try:
        for one in parsed.body:
            _add(one, asked, where)
    except _NotExpressedError as exc:
        line = template.splitlines()[exc.node.lineno - 1].strip()
        raise InvalidArgument(
            f"{where}, line {exc.node.lineno}, {line!r:.80}: a prompt has text, {{{{ name }}}}, "
            "{{ name[0] }} and {% for one in list %}...{{ one.content }}...{% endfor %}; this has "
            f"something else ({type(exc.node).__name__}): write it without"
        ) from None
    return asked


def _add(one: nodes.Node, asked: JinjaPrompt, where: str) -> None:
    if isinstance(one, nodes.For):
        _add_loop(one, asked, where)
        return
    if not isinstance(one, nodes.Output):
        raise _NotExpressedError(one)
    for piece in one.nodes:
        if isinstance(piece, nodes.TemplateData):
            asked.pieces.append(piece.data)
            continue
        first = _first(piece)
        if isinstance(piece, nodes.Name):
            asked.texts.append(piece.name)
            asked.pieces.append(PromptPart(name=piece.name))
        elif first is not None:
            asked.firsts.append(first)
            asked.pieces.append(PromptPart(name=first))
        else:
            raise _NotExpressedError(piece)


def _add_loop(loop: nodes.For, asked: JinjaPrompt, where: str) -> None:
    """Add the loop as ``before``, the elements joined by ``after + before``, and ``after``: the
    same text as ``before + content + after`` for each element."""
    plain = isinstance(loop.target, nodes.Name) and isinstance(loop.iter, nodes.Name)
    if not plain or loop.else_ or loop.test is not None or loop.recursive:
        raise _NotExpressedError(loop)
    assert isinstance(loop.target, nodes.Name)
    assert isinstance(loop.iter, nodes.Name)
    around = ["", ""]
    num_contents = 0
    for piece in _pieces(loop):
        if isinstance(piece, nodes.TemplateData):
            around[min(num_contents, 1)] += piece.data
        elif _is_content(piece, loop.target.name):
            num_contents += 1
        else:
            raise _NotExpressedError(piece)
    if num_contents != 1:
        raise _NotExpressedError(loop)
    before, after = around
    if asked.separator not in (None, after + before):
        raise InvalidArgument(
            f"{where}, line {loop.lineno}: its loops write different texts between their elements; "
            "a prompt has one separator: write them alike"
        )
    asked.separator = after + before
    asked.pieces += [before, PromptPart(name=loop.iter.name), after]
    asked.lists.append(loop.iter.name)


def _pieces(loop: nodes.For) -> Iterator[nodes.Node]:
    for one in loop.body:
        if not isinstance(one, nodes.Output):
            raise _NotExpressedError(one)
        yield from one.nodes


def _is_content(piece: nodes.Node, target: str) -> bool:
    """Whether ``piece`` is ``one.content`` of the loop over ``one``."""
    if not isinstance(piece, nodes.Getattr) or piece.attr != "content":
        return False
    return isinstance(piece.node, nodes.Name) and piece.node.name == target


def _first(piece: nodes.Node) -> str | None:
    """Return the name in ``name[0]`` or ``name[0].text``, or None."""
    if isinstance(piece, nodes.Getattr) and piece.attr in ("content", "text"):
        piece = piece.node
    if not isinstance(piece, nodes.Getitem) or not isinstance(piece.node, nodes.Name):
        return None
    is_first = isinstance(piece.arg, nodes.Const) and piece.arg.value == 0
    return piece.node.name if is_first else None


def _literal(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")
