"""What a guest is told of the models that it may use."""

from __future__ import annotations

import msgspec
import pytest

from quire.core.ids import ModelId
from quire.core.interfaces import ServedModel
from quire.node.sandbox.runtime import _guest_model
from quire.programs.chat import Dialect, dialect_of
from quire.programs.sandbox.messages import GuestModel
from quire.programs.sandbox.python.guest.questions import served_model
from quire.programs.sandbox.python.guest.stand_ins import template
from quire.testing import FakeEngine, FakeTokenizer, fake_pool


def not_asked(question: str) -> str:
    raise AssertionError(f"the host was asked {question}")


@pytest.mark.parametrize(
    ("chat_template", "dialect"),
    [
        ("<tool_call>", Dialect.HERMES),
        ("[AVAILABLE_TOOLS] [TOOL_CALLS]", Dialect.MISTRAL),
        ('<|start_header_id|> {"name": ..., "parameters": ...}', Dialect.LLAMA),
        ("<|start|>assistant<|channel|>final<|message|>", Dialect.HARMONY),
        (None, Dialect.HERMES),
    ],
)
def test_a_guest_knows_in_which_form_its_model_writes(
    chat_template: str | None, dialect: Dialect
) -> None:
    info = FakeEngine(fake_pool()).info
    model = ServedModel(ModelId("m"), ModelId("m"), info, FakeTokenizer(), chat_template)
    told = msgspec.json.decode(msgspec.json.encode(_guest_model(model)), type=GuestModel)
    inside = served_model(not_asked, told)
    assert template.dialect_of(inside) is dialect_of(model) is dialect
    assert (inside.chat_template is None) == (chat_template is None)
