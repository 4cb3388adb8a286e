"""``/v1/programs``: launching, listing, signalling; and the frames of an attachment."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, JsonValue, StringConstraints, model_validator

from quire.programs.parameters import as_text
from quire.server.schemas.base import Name, RequestModel, ResponseModel, Text
from quire.server.schemas.generation import Priority

MAX_ARGUMENTS = 64
MAX_MESSAGE_CHARS = 1 << 20

MAX_ARGUMENT_CHARS = 1 << 16


def _argument(value: Any) -> str:
    """A string as it is, any other JSON value as its JSON: the program's annotations say what is
    made of it.

    Raises:
        ValueError: it is too long.
    """
    try:
        text = as_text(value)
    except RecursionError as exc:
        raise ValueError("an argument is nested too deep") from exc
    if len(text) > MAX_ARGUMENT_CHARS:
        raise ValueError(f"an argument has at most {MAX_ARGUMENT_CHARS} characters")
    return text


Argument = Annotated[str, BeforeValidator(_argument, json_schema_input_type=JsonValue)]
MessageText = Annotated[str, StringConstraints(max_length=MAX_MESSAGE_CHARS)]


class LaunchRequest(RequestModel):
    """``program`` names one of the library, or one that was uploaded (by name or digest);
    ``source`` is Python text, ``module`` WebAssembly in base64.

    Both run in the sandbox; ``source`` with the rights of the server's own process where that was
    started with ``--allow-upload``. ``client_id`` and ``parent`` place the program in the
    caller's process table. ``args`` are the program's arguments by place, ``named_args`` by name:
    strings, or other JSON values. ``priority``: as in vLLM, lower runs first. ``seed``: of the
    program's own randomness (``api.random``); chosen here and told if it is left out. ``wait``:
    answer when it has ended, with its result or error. ``stream``: answer with its messages as
    events, as they come. A client of either that leaves before the end ends it.
    """

    program: Name | None = None
    source: Text | None = None
    module: Text | None = None
    args: Annotated[list[Argument], Field(max_length=MAX_ARGUMENTS)] = Field(default_factory=list)
    named_args: Annotated[dict[Name, Argument], Field(max_length=MAX_ARGUMENTS)] = Field(
        default_factory=dict
    )
    client_id: Name | None = None
    parent: Name | None = None
    priority: Priority | None = None
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] | None = None
    wait: bool = False
    stream: bool = False

    @model_validator(mode="after")
    def _one(self) -> LaunchRequest:
        given = (self.program, self.source, self.module)
        if sum(entry is not None for entry in given) != 1:
            raise ValueError("give one of program (a name), source and module")
        if self.wait and self.stream:
            raise ValueError("give wait or stream: a stream ends with the program's record")
        return self


class UploadRequest(RequestModel):
    """A program to keep: ``source`` is Python text, ``module`` WebAssembly in base64."""

    source: Text | None = None
    module: Text | None = None

    @model_validator(mode="after")
    def _one(self) -> UploadRequest:
        if (self.source is None) == (self.module is None):
            raise ValueError("give either source or module")
        return self


class SignalRequest(RequestModel):
    """``message`` puts text into the program's mailbox; the others carry none."""

    signal: Literal["message", "end_of_input", "cancel"]
    message: MessageText | None = None

    @model_validator(mode="after")
    def _fits(self) -> SignalRequest:
        if (self.signal == "message") != (self.message is not None):
            raise ValueError("signal 'message' needs a message, and no other signal takes one")
        return self


class ProgramError(ResponseModel):
    code: str
    message: str


class ProcessFigures(ResponseModel):
    """What the process table has counted. ``service_s``: engine time of the messages that carried
    anything of it; ``cost_s``: its share of them by tokens; ``waiting_s``: time in which a command
    could have run and did not."""

    num_queues: int
    num_pages: int
    num_pending_commands: int
    num_prefilled_tokens: int
    num_cached_tokens: int
    num_generated_tokens: int
    num_preemptions: int
    service_s: float
    cost_s: float
    waiting_s: float


class ProgramUsage(ResponseModel):
    """What a program itself has used, without its children. ``guest_cpu_s`` and
    ``guest_memory_bytes`` (the most that it had) are set for an ended sandboxed program; the
    memory of one in Python is not known."""

    num_prefilled_tokens: int
    num_cached_tokens: int
    num_generated_tokens: int
    num_preemptions: int
    service_s: float
    waiting_s: float
    guest_cpu_s: float | None = None
    guest_memory_bytes: int | None = None


class Program(ResponseModel):
    """One program of any form. ``created`` and ``ended`` are Unix times.

    ``state`` of a launched program: starting, running, finished, failed, cancelled, terminated; of
    a session: idle, waiting, running. ``result`` is what it returned, once it has finished.
    ``process`` is null once the process table has forgotten it; ``usage`` stays. ``duration_s`` is
    set when it has ended.
    """

    id: str
    object: Literal["program"]
    form: Literal["session", "inferlet", "workflow"]
    name: str
    state: str
    client_id: str | None
    process: ProcessFigures | None
    usage: ProgramUsage | None = None
    args: list[str] | None = None
    named_args: dict[str, str] | None = None
    parent: str | None = None
    priority: int | None = None
    created: float | None = None
    ended: float | None = None
    duration_s: float | None = None
    num_messages: int | None = None
    num_dropped_messages: int | None = None
    seed: int | None = None
    result: Any = None
    error: ProgramError | None = None


class ProgramList(ResponseModel):
    object: Literal["list"]
    data: list[Program]


class LogLine(ResponseModel):
    """``time`` is Unix time; ``fields`` are values that the program logged with the text."""

    time: float
    level: Literal["debug", "info", "warning", "error"]
    text: str
    fields: dict[str, Any]


class LogLines(ResponseModel):
    object: Literal["list"]
    data: list[LogLine]


class Parameter(ResponseModel):
    """One argument of a program. ``kind``: what its text is read as. ``by``: how it may be given,
    by place, by name or either; ``rest`` takes all further places, ``names`` all further names.
    ``least`` and ``most`` bound a number."""

    name: str
    kind: Literal["text", "integer", "number", "boolean", "json"]
    by: Literal["either", "place", "name", "rest", "names"]
    required: bool
    default: str
    help: str
    choices: list[str]
    least: float | None
    most: float | None


class LibraryProgram(ResponseModel):
    """``summary`` is the first sentence of ``description``."""

    name: str
    object: Literal["library_program"]
    theme: str
    summary: str
    description: str
    parameters: list[Parameter]


class Library(ResponseModel):
    object: Literal["list"]
    data: list[LibraryProgram]


class UploadedProgram(ResponseModel):
    """``id`` is the SHA-256 of the code; its manifest asks for ``hosts`` and ``traits``.
    ``parameters`` is null for one that does not say which arguments it takes."""

    id: str
    object: Literal["uploaded_program"]
    name: str
    description: str
    kind: Literal["python", "module"]
    num_bytes: int
    traits: dict[str, int]
    hosts: list[str]
    parameters: list[Parameter] | None
    created: float


class UploadedPrograms(ResponseModel):
    object: Literal["list"]
    data: list[UploadedProgram]


class MessageFrame(RequestModel):
    """Client to program: one message."""

    type: Literal["message"]
    text: MessageText


class ControlFrame(RequestModel):
    """``end_of_input``: the client will send no more. ``cancel``: end the program."""

    type: Literal["end_of_input", "cancel"]


ClientFrame = Annotated[MessageFrame | ControlFrame, Field(discriminator="type")]
