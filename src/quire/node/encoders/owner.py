"""The control thread as the owner of encoders, whose programs outlive them."""

from __future__ import annotations

from quire.node.control.control_thread import ControlThread


class EncoderOwner:
    """An ``EngineOwner`` for which the loss of the last instance ends no program."""

    def __init__(self, control: ControlThread) -> None:
        self.engine_up = control.engine_up
        self.engine_answered = control.engine_answered
        self.engine_down = control.engine_down
        self.engine_given_up = control.fail_waiting
