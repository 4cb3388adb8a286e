"""``/v1/programs``: launching, listing, signalling; and the frames of an attachment."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, JsonValue, StringConstraints, model_validator

from quire.core.program_files import MAX_FILES
from quire.programs.parameters import as_text
from quire.server.schemas.base import Name, RequestModel, ResponseModel, Text, counted_first
from quire.server.schemas.generation import Priority

MAX_ARGUMENTS = 64
MAX_MESSAGE_CHARS = 1 << 20

MAX_ARGUMENT_CHARS = 1 << 16


def _argument(value: Any) -> str:
    """Return a string unchanged, any other JSON value as its JSON text: the program's annotations
    decide how it is converted.

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
FileTexts = Annotated[dict[Text, Text], Field(max_length=MAX_FILES), counted_first(MAX_FILES)]


class LaunchRequest(RequestModel):
    """``program`` names a program of the library, a shipped workflow, or an uploaded program (by
    name or digest);
    ``source`` is Python text, ``files`` several texts by path, ``module`` WebAssembly in base64.
    They run in the sandbox; with ``--allow-upload`` ``source`` runs with the rights of the server's
    own process instead.

    ``client_id`` and ``parent`` place the program in the tenant's process table. ``args`` are the
    program's arguments by position, ``named_args`` by name: strings, or other JSON values.
    ``priority``: as in vLLM, lower runs first. ``seed``: of the program's random numbers
    (``api.random``); if absent one is chosen and returned. ``wait``: answer when the program has
    ended, with its result or error. ``stream``: answer with its messages as events, as they arrive.
    With either, a client that disconnects before the end ends the program.
    """

    program: Name | None = None
    source: Text | None = None
    files: FileTexts | None = None
    module: Text | None = None
    args: Annotated[list[Argument], Field(max_length=MAX_ARGUMENTS, fail_fast=True)] = Field(
        default_factory=list
    )
    named_args: Annotated[
        dict[Name, Argument], Field(max_length=MAX_ARGUMENTS), counted_first(MAX_ARGUMENTS)
    ] = Field(default_factory=dict)
    client_id: Name | None = None
    parent: Name | None = None
    priority: Priority | None = None
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] | None = None
    wait: bool = False
    stream: bool = False

    @model_validator(mode="after")
    def _one(self) -> LaunchRequest:
        given = (self.program, self.source, self.files, self.module)
        if sum(entry is not None for entry in given) != 1:
            raise ValueError("give one of program (a name), source, files and module")
        if self.wait and self.stream:
            raise ValueError("give wait or stream: a stream ends with the program's record")
        return self


class UploadRequest(RequestModel):
    """A program to store: ``source`` is Python text, ``files`` several texts by path with a
    ``main.py``, ``module`` WebAssembly in base64."""

    source: Text | None = None
    files: FileTexts | None = None
    module: Text | None = None

    @model_validator(mode="after")
    def _one(self) -> UploadRequest:
        given = (self.source, self.files, self.module)
        if sum(entry is not None for entry in given) != 1:
            raise ValueError("give one of source, files and module")
        return self


class SignalRequest(RequestModel):
    """``message`` puts a text into the program's mailbox; the other signals have no text."""

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
    """Figures of the process table. ``service_s``: engine time of the batch messages that had a
    part of the program; ``cost_s``: its share of that time by tokens; ``path_s``: the longest
    critical path through its calls, with what its parents did before it and its ended children
    after; ``waiting_s``: time in which a command could have run and did not."""

    num_queues: int
    num_threads: int
    num_pages: int
    num_pending_commands: int
    num_prefilled_tokens: int
    num_cached_tokens: int
    num_generated_tokens: int
    num_encoded_tokens: int
    num_preemptions: int
    service_s: float
    path_s: float
    cost_s: float
    waiting_s: float


class ProgramUsage(ResponseModel):
    """The resources that a program itself has used, without its children. ``guest_cpu_s`` and
    ``guest_memory_bytes`` (the maximum) are set for an ended sandboxed program; the memory is not
    known if a trap ended it."""

    num_prefilled_tokens: int
    num_cached_tokens: int
    num_generated_tokens: int
    num_encoded_tokens: int
    num_preemptions: int
    service_s: float
    waiting_s: float
    guest_cpu_s: float | None = None
    guest_memory_bytes: int | None = None


class Program(ResponseModel):
    """One program of any form. ``created`` and ``ended`` are Unix times.

    ``state`` of a launched program: starting, running, finished, failed, cancelled, terminated; of
    a session: idle, waiting, running. ``result`` is its return value, once it has finished.
    ``process`` is null once the program has left the process table; ``usage`` is kept.
    ``duration_s`` is set when it has ended.
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
    parent_thread: int | None = None
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
    """One parameter of a program. ``kind``: the type to which its text is converted. ``by``: how it
    may be given, by place, by name or either; ``rest`` takes all further places, ``names`` all
    further names. ``least`` and ``most`` limit a number."""

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
    """``summary`` is the first sentence of ``description``; ``restartable``: it survives the loss
    of its engine and moves when its node is drained."""

    name: str
    object: Literal["library_program"]
    theme: str
    summary: str
    description: str
    parameters: list[Parameter]
    restartable: bool


class Library(ResponseModel):
    object: Literal["list"]
    data: list[LibraryProgram]


class UploadedProgram(ResponseModel):
    """``id`` is the SHA-256 of the code; ``hosts``, ``traits`` and ``restartable`` are those of its
    manifest.
    ``parameters`` is null for a program that does not declare them."""

    id: str
    object: Literal["uploaded_program"]
    name: str
    description: str
    kind: Literal["python", "package", "module"]
    num_bytes: int
    traits: dict[str, int]
    hosts: list[str]
    restartable: bool
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
