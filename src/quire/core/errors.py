"""The one exception tree, and its form on a wire.

::

    QuireError
    ├── ConfigError            the node cannot start as configured
    ├── ModelError             a model directory cannot be served
    │   ├── ModelNotFound
    │   ├── ModelFormatError
    │   └── UnsupportedModel
    ├── RequestError           the caller must change the request; retrying is useless
    │   ├── InvalidArgument
    │   ├── UnknownHandle
    │   ├── PromptTooLong
    │   ├── NeverFits
    │   ├── NeverWithinQuota   it asks for more at once than a quota allows
    │   ├── AlreadyExists      something else has the name that was asked for
    │   ├── GrammarError
    │   └── TraitMissing
    ├── AccessError            who the caller is does not allow it
    │   ├── Unauthorized
    │   └── Forbidden
    ├── CapacityError          true now, may be false later: a retry is safe
    │   ├── PoolExhausted
    │   ├── QuotaExceeded
    │   ├── MailboxFull
    │   └── Draining
    ├── QueueError
    │   └── QueuePoisoned      an earlier command of the queue failed
    ├── ProgramError
    │   ├── ProgramCancelled
    │   ├── ProgramFailed      the program's own exception
    │   ├── ProgramTerminated  ended by the node, with the reason
    │   ├── RequestInterrupted  another host may have done what it was asked for
    │   ├── DeadlineExceeded   it has not ended in the time that its caller gave it
    │   └── MailboxClosed      the other side of a mailbox has gone
    └── EngineError
        ├── EngineLost
        ├── EngineFault        the engine answered with an error
        ├── PageLost           an opaque page did not survive an engine
        ├── TransferFailed     K and V did not get from one engine to another
        └── ProtocolMismatch

A message says what happened, the values, and the remedy. On a wire an error is an ``ErrorRecord``;
``code`` is the stable name that clients may test.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec


class ErrorRecord(msgspec.Struct, frozen=True):
    """An error as data, for messages between processes and HTTP bodies."""

    code: str
    message: str
    retriable: bool = False
    details: dict[str, Any] = msgspec.field(default_factory=dict)


class QuireError(Exception):
    """Base of every error that Quire raises on purpose.

    ``details`` holds the figures of the message for programs; ``retriable``: the same request may
    succeed later.
    """

    code: ClassVar[str] = "internal_error"
    retriable: ClassVar[bool] = False

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details = details

    def record(self) -> ErrorRecord:
        return ErrorRecord(self.code, self.message, self.retriable, self.details)


class ConfigError(QuireError):
    code = "invalid_config"


class ModelError(QuireError):
    code = "model_error"


class ModelNotFound(ModelError):
    code = "model_not_found"


class ModelFormatError(ModelError):
    code = "model_format_error"


class UnsupportedModel(ModelError):
    code = "unsupported_model"


class RequestError(QuireError):
    code = "invalid_request"


class InvalidArgument(RequestError):
    code = "invalid_argument"


class UnknownHandle(RequestError):
    """A page, embed, queue or name that this program does not hold (or no longer holds)."""

    code = "unknown_handle"


class PromptTooLong(RequestError):
    code = "context_length_exceeded"


class NeverFits(RequestError):
    """The working set of one command exceeds the whole pool; the command is refused when issued."""

    code = "never_fits"


class NeverWithinQuota(RequestError):
    """A single request exceeds a quota, whatever is held already; or the quota bounds what is used
    up, such as generated tokens, and is spent. Waiting does not help."""

    code = "never_within_quota"


class AlreadyExists(RequestError):
    """The thing to be created exists already, with other properties."""

    code = "already_exists"


class GrammarError(RequestError):
    code = "invalid_grammar"


class TraitMissing(RequestError):
    code = "trait_missing"


class AccessError(QuireError):
    code = "access_denied"


class Unauthorized(AccessError):
    code = "unauthorized"


class Forbidden(AccessError):
    code = "forbidden"


class CapacityError(QuireError):
    code = "capacity"
    retriable = True


class PoolExhausted(CapacityError):
    code = "pool_exhausted"


class QuotaExceeded(CapacityError):
    code = "quota_exceeded"


class MailboxFull(CapacityError):
    """The other side does not read, and the buffer is full."""

    code = "mailbox_full"


class Draining(CapacityError):
    code = "draining"


class QueueError(QuireError):
    code = "queue_error"


class QueuePoisoned(QueueError):
    """Raised for every command after a failed one, until the queue is reset."""

    code = "queue_poisoned"


class ProgramError(QuireError):
    code = "program_error"


class ProgramCancelled(ProgramError):
    code = "program_cancelled"


class ProgramFailed(ProgramError):
    code = "program_failed"


class ProgramTerminated(ProgramError):
    code = "program_terminated"


class DeadlineExceeded(ProgramError):
    code = "deadline_exceeded"


class RequestInterrupted(ProgramError):
    """A request to another host had no answer when its program began again: it may have been
    carried out there."""

    code = "request_interrupted"
    retriable = True


class MailboxClosed(ProgramError):
    code = "mailbox_closed"


class EngineError(QuireError):
    code = "engine_error"


class EngineLost(EngineError):
    """``details`` may have ``waited_s``: the seconds for which an answer was waited for in vain."""

    code = "engine_lost"
    retriable = True


class EngineFault(EngineError):
    code = "engine_fault"


class PageLost(EngineError):
    """What was lost cannot be computed again here, but the program that wrote it can."""

    code = "page_lost"
    retriable = True


class TransferFailed(EngineError):
    code = "transfer_failed"
    retriable = True


class ProtocolMismatch(EngineError):
    code = "protocol_mismatch"


def _tree(root: type[QuireError]) -> list[type[QuireError]]:
    return [root] + [leaf for child in root.__subclasses__() for leaf in _tree(child)]


UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for bytes that are not what they should be; the second for text that is not
UTF-8, the third for brackets without end."""

_BY_CODE: dict[str, type[QuireError]] = {cls.code: cls for cls in _tree(QuireError)}


def from_record(record: ErrorRecord) -> QuireError:
    """The exception that ``record`` stands for; an unknown code becomes a plain ``QuireError``."""
    return _BY_CODE.get(record.code, QuireError)(record.message, **record.details)
