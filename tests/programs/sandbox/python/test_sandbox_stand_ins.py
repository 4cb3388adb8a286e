"""The stand-in for msgspec does what msgspec does, for all that guests and hosts exchange."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Mapping
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal, cast

import msgspec
import pytest

from quire.core.errors import InvalidArgument
from quire.core.interfaces import Tokenizer
from quire.programs.chat.template import ChatTemplate
from quire.programs.sandbox.python.bundle import component_files
from quire.programs.sandbox.python.guest.stand_ins import template as stand_in
from quire.programs.sdk.tools import Tool

NAMES = (
    "msgspec",
    "quire.core.calls",
    "quire.core.commands",
    "quire.core.decoding",
    "quire.core.errors",
    "quire.programs.sandbox.messages",
    "quire.programs.sandbox.python.guest.rehearsal",
    "quire.programs.sdk.tools",
)
_REPLACED = ("msgspec", "numpy", "httpx", "quire")


def _present() -> dict[str, ModuleType]:
    return {name: sys.modules[name] for name in list(sys.modules) if _is_replaced(name)}


def _is_replaced(name: str) -> bool:
    return name.split(".")[0] in _REPLACED


class Inside:
    """The component's own modules, imported here as a guest would import them.

    Types look their modules up by name, so what is done with them is done within ``with``.
    """

    def __init__(self, folder: Path) -> None:
        for path, content in component_files().items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
        self._folder = str(folder)
        self._own: dict[str, ModuleType] = {}
        with self:
            self.modules = {name: importlib.import_module(name) for name in NAMES}

    def __enter__(self) -> None:
        self._kept = _present()
        self._swap(self._own)
        sys.path.insert(0, self._folder)

    def __exit__(self, *_: object) -> None:
        sys.path.remove(self._folder)
        self._own = _present()
        self._swap(self._kept)

    def _swap(self, modules: dict[str, ModuleType]) -> None:
        for name in _present():
            del sys.modules[name]
        sys.modules.update(modules)


@pytest.fixture(scope="module")
def inside(tmp_path_factory: pytest.TempPathFactory) -> Inside:
    return Inside(tmp_path_factory.mktemp("component"))


def build(package: dict[str, ModuleType]) -> list[Any]:
    """Messages of every kind, made of the modules of ``package``."""
    m, c = package["quire.programs.sandbox.messages"], package["quire.core.commands"]
    d, e = package["quire.core.decoding"], package["quire.core.errors"]
    q = package["quire.core.calls"]
    error = e.QuotaExceeded("too much", limit=3).record()
    stop = d.StopSpec(4, token_ids=(1, 2), strings=(b"\xff\n", b"stop"))
    sampler = d.SamplerSpec((d.Processor("top_k", {"k": 3, "tokens": [1, 2.5]}),), False, 7)
    logprobs = [d.TokenLogprobs(1, -0.5, [1, 2], [-0.5, -2.0])]
    chunk = d.DecodeChunk([1, 2], logprobs, None, "stop", b"stop", 3, 9)
    decode = c.Decode(
        id=5, after=(1,), context=[1], output=[2], tokens=[3], position=0, sampler=sampler,
        stop=stop, grammar=d.GrammarSpec("regex", "a+"), history=[1],
    )  # fmt: skip
    forward = c.Forward(
        id=6, context=[], inputs=[1], output=[], outputs=[], mask=[[True, False]],
        scores="slots",
    )  # fmt: skip
    imported = c.Imported([c.ImportedPage(1, 2, [0, 1], [True, True])], 2, [7, 8, 9])
    export = c.ExportPages(id=8, pages=[1], name="text", ttl_s=None, tokens=[7, 8, 9])
    return [
        m.Turn(
            [q.Issue(1, [decode, forward, export]), m.Send("hällo \U0001f600"), m.Received(2)], 0.5
        ),
        m.Turn(
            [
                q.CreateQueue(1, "m"),
                q.Cancel(5),
                q.AskService(1, "a.b", {"c": [1]}),
                m.Fetch(1, "POST", "http://x", b"\x00\xff", {"a": "b"}),
            ],
            None,
        ),
        m.Turn([m.Ended("failed", "null", error, [error], ["task"])]),
        [
            m.Replied(1, chunk, True),
            m.Replied(2, None, True),
            m.Replied(3, imported, True),
            m.Replied(4, c.Dists([d.Dist([1], [0.5])]), True),
            m.Replied(5, c.Sampled([1]), True),
            m.Replied(6, d.DecodeChunk([], matched=3), False),
            m.Replied(8, c.AttentionScores(1, 1, 2, 1, b"\0\0\x80?", b"\xff" * 4), True),
            m.CommandFailed(7, error),
            m.Fetched(1, 200, {"a": "b"}, "text", b"\x80"),
            m.TimeCome(),
        ],
        m.Inspected(m.Manifest("name", traits={"Core": 1}, hosts=("a",))),
    ]


def types(package: dict[str, ModuleType]) -> list[Any]:
    m = package["quire.programs.sandbox.messages"]
    return [m.Turn, m.Turn, m.Turn, list[m.GuestEvents], m.Inspected]


@pytest.fixture(scope="module")
def outside() -> dict[str, ModuleType]:
    return {name: importlib.import_module(name) for name in NAMES}


@pytest.mark.parametrize("index", range(5))
def test_messages_are_the_same_text_on_both_sides(
    outside: dict[str, ModuleType], inside: Inside, index: int
) -> None:
    here = build(outside)[index]
    text = msgspec.json.encode(here)
    with inside:
        own = inside.modules["msgspec"]
        assert own.__version__ == "stand-in"
        there = build(inside.modules)[index]
        text_there = own.json.encode(there)
        assert own.json.decode(text, type=types(inside.modules)[index]) == there
    assert json.loads(text_there) == json.loads(text)
    assert msgspec.json.decode(text_there, type=types(outside)[index]) == here


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("x", int), (1, str), (True, int), (1.5, int), (None, str), ([1, "x"], list[int]),
        ({"a": 1}, dict[str, str]), ("c", Literal["a", "b"]), ([1], str | None),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_by_both(inside: Inside, value: Any, kind: Any) -> None:
    text = json.dumps(value)
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(text, type=kind)
    own = inside.modules["msgspec"]
    with inside, pytest.raises(own.ValidationError):
        own.json.decode(text, type=kind)


def lookup(
    name: Annotated[str, "whose"],
    count: int = 3,
    exact: bool = False,
    tags: list[str] | None = None,
    kind: Literal["a", "b"] = "a",
    table: dict[str, float] = {},  # noqa: B006 - what a tool's author may write
) -> str:
    """Looks something up."""
    return f"{name} {count} {exact} {tags} {kind} {table}"


WRONG = ("{}", '{"name": 1}', '{"name": "x", "other": 1}', "[", '{"name": "x", "kind": "c"}')


async def test_tools_have_the_same_schema_and_checks(inside: Inside) -> None:
    here = Tool.of(lookup)
    right = ('{"name": "x"}', '{"name": "x", "count": "5", "exact": "true"}')
    answers = [await here.call(arguments) for arguments in right]
    for arguments in WRONG:
        with pytest.raises(InvalidArgument):
            await here.call(arguments)
    with inside:
        there = inside.modules["quire.programs.sdk.tools"].Tool.of(lookup)
        assert there.schema() == here.schema()
        assert [await there.call(arguments) for arguments in right] == answers
        for arguments in WRONG:
            with pytest.raises(inside.modules["quire.core.errors"].InvalidArgument):
                await there.call(arguments)


class _Host:
    """A guest's tokenizer, whose host renders with ``template``."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template

    def render(self, arguments: Mapping[str, Any]) -> str:
        sent = json.loads(json.dumps(arguments))
        return self._template.render(sent.pop("messages"), **sent)


def test_a_guests_chat_template_takes_the_arguments_of_the_native_one() -> None:
    own, native = signature(stand_in.ChatTemplate.render), signature(ChatTemplate.render)
    assert own.parameters == native.parameters
    template = ChatTemplate("{{ documents[0].text }} {{ messages[0].content }}")
    guests = stand_in.ChatTemplate(cast(Tokenizer, _Host(template)))
    messages, documents = [{"role": "user", "content": "Who?"}], [{"text": "It was Ada."}]
    text = guests.render(messages, documents=documents)
    assert text == template.render(messages, documents=documents) == "It was Ada. Who?"


def test_the_rehearsal_runs_inside(inside: Inside) -> None:
    with inside:
        rehearsal = inside.modules["quire.programs.sandbox.python.guest.rehearsal"]
        rehearsal.rehearse()
        rehearsal.warm()


def test_the_component_has_no_module_that_needs_what_it_lacks() -> None:
    files = component_files()
    assert b"stand-in" in files["msgspec/__init__.py"]
    assert "quire/programs/chat/template_budget.py" not in files
    assert b"import jinja2" not in b"".join(files.values())
