"""The issuer's state of one queue: its model, its traits, its first failure."""

from __future__ import annotations

from quire.core.errors import ErrorRecord, from_record
from quire.core.ids import QueueId
from quire.core.interfaces import ServedModel


class QueueState:
    """State of one queue, shared by all handles to it. Belongs to the issuer."""

    __slots__ = ("closed", "failure", "failure_seen", "id", "model", "traits")

    def __init__(self, queue: QueueId, model: ServedModel) -> None:
        self.id = queue
        self.model = model
        self.traits = model.traits
        self.closed = False
        self.failure: ErrorRecord | None = None
        self.failure_seen = False

    def fail(self, error: ErrorRecord) -> None:
        """Note that a command of the queue has failed; the first failure is kept."""
        if self.failure is None and error.code not in ("program_cancelled", "queue_poisoned"):
            self.failure = error
            self.failure_seen = False

    def raise_unseen(self) -> None:
        """Raise the failure if no await has raised it yet."""
        if self.failure is not None and not self.failure_seen:
            self.failure_seen = True
            raise from_record(self.failure)

    def reset(self) -> None:
        self.failure = None
        self.failure_seen = False
