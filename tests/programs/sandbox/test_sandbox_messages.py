"""What a guest can say: the calls of a program, and not those that its node makes for it."""

from __future__ import annotations

import json

import msgspec
import pytest

from quire.core.calls import AskService
from quire.programs.sandbox.messages import Turn


def test_a_guest_asks_services_and_never_an_encoder_itself() -> None:
    asked = ["AskService", 1, "encoders.list", {}]
    turn = msgspec.json.decode(json.dumps({"calls": [asked]}), type=Turn)
    assert turn.calls == [AskService(1, "encoders.list", {})]
    with pytest.raises(msgspec.ValidationError, match="Invalid value 'AskEncoder'"):
        msgspec.json.decode(json.dumps({"calls": [["AskEncoder", "m", {}]]}), type=Turn)
