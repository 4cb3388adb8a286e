"""Formats chunks as Anthropic's messages, whole or as events.

Owns the order of blocks: thinking, text and tool uses as they arrive, one open at a time. Must not
know how text is parsed (``ChoiceParser``) nor how bytes are sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic_core import from_json

from quire.core.errors import ProgramCancelled
from quire.programs.builtin import ChoiceChunk
from quire.programs.chat import (
    Answer,
    CallArguments,
    CallStarted,
    Piece,
    Reasoning,
    TextPiece,
    whole_answer,
)
from quire.server.answers.frame import Frame
from quire.server.answers.generation import PromptChunk
from quire.server.answers.text_event import TextEvent
from quire.server.anthropic.events import event
from quire.server.chat.parsing import ChoiceParser, Reading
from quire.server.schemas.anthropic import (
    AnswerBlock,
    AnswerMessage,
    AnswerText,
    AnswerThinking,
    AnswerToolUse,
    MessageTokensDetails,
    MessageUsage,
    StopReason,
)


class MessageFormatter:
    """One message of the assistant. ``fills_context``: the model's context, not the client, limits
    its tokens."""

    def __init__(
        self, frame: Frame, num_prompt_tokens: int, reading: Reading, *, fills_context: bool = False
    ) -> None:
        self._fills_context = fills_context
        self._frame = frame
        self._num_prompt = num_prompt_tokens
        self._parser = ChoiceParser(reading)
        self._pieces: list[Piece] = []
        self._num_blocks = 0
        self._open: type[Piece] | None = None
        self._fill: Callable[[str], bytes] | None = None
        self._started = False
        self._num_cached = 0
        self._num_output = 0
        self._num_thinking = 0
        self._stop_reason: StopReason | None = None
        self._stop_sequence: str | None = None

    # -- as a Formatter ----------------------------------------------------------------------------

    def feed(self, item: PromptChunk) -> list[bytes]:
        chunk = item.chunk
        if chunk.finish_reason == "cancelled":
            raise ProgramCancelled("the message was cancelled before its end")
        # the cached tokens of an answer that goes on here may be its own
        self._num_cached = min(self._num_cached + chunk.num_cached_tokens, self._num_prompt)
        self._num_output += len(chunk.token_ids)
        events = self._opening()
        for piece in self._parse(chunk):
            events += self._tell(piece)
        if chunk.finish_reason is not None:
            events += self._close()
            self._end(chunk)
        return events

    def last_events(self) -> list[bytes]:
        delta = {"stop_reason": self._stop_reason, "stop_sequence": self._stop_sequence}
        return [
            event("message_delta", delta=delta, usage=self._usage().model_dump()),
            event("message_stop"),
        ]

    def whole(self) -> bytes:
        return self._message(self._blocks()).to_json()

    # -- inside ------------------------------------------------------------------------------------

    def answer(self) -> Answer:
        return whole_answer(self._pieces)

    def _parse(self, chunk: ChoiceChunk) -> list[Piece]:
        pieces = self._parser.feed(chunk.text)
        if chunk.finish_reason is not None:
            pieces += self._parser.finish()
        self._pieces += pieces
        if any(isinstance(piece, Reasoning) for piece in pieces):
            self._num_thinking += len(chunk.token_ids)
        return pieces

    def _opening(self) -> list[bytes]:
        if self._started:
            return []
        self._started = True
        return [event("message_start", message=self._message([]).model_dump()), event("ping")]

    def _tell(self, piece: Piece) -> list[bytes]:
        match piece:
            case TextPiece(text):
                events = self._switch_to(TextPiece, AnswerText(text=""), "text_delta", "text")
            case Reasoning(text):
                block = AnswerThinking(thinking="")
                events = self._switch_to(Reasoning, block, "thinking_delta", "thinking")
            case CallStarted(_, call_id, name):
                use = AnswerToolUse(id=call_id, name=name, input={})
                return self._close() + self._begin(
                    CallArguments, use, "input_json_delta", "partial_json"
                )
            case CallArguments(_, text):
                events = []
        assert self._fill is not None
        return [*events, self._fill(text)]

    def _switch_to(
        self, kind: type[Piece], block: AnswerBlock, delta: str, field: str
    ) -> list[bytes]:
        if self._open is kind:
            return []
        return self._close() + self._begin(kind, block, delta, field)

    def _begin(self, kind: type[Piece], block: AnswerBlock, delta: str, field: str) -> list[bytes]:
        index, self._num_blocks = self._num_blocks, self._num_blocks + 1
        self._open = kind
        self._fill = TextEvent(
            lambda text: event(
                "content_block_delta", index=index, delta={"type": delta, field: text}
            )
        ).fill
        return [event("content_block_start", index=index, content_block=block.model_dump())]

    def _close(self) -> list[bytes]:
        if self._open is None:
            return []
        self._open = None
        return [event("content_block_stop", index=self._num_blocks - 1)]

    def _end(self, chunk: ChoiceChunk) -> None:
        if chunk.finish_reason == "length":
            self._stop_reason = (
                "model_context_window_exceeded" if self._fills_context else "max_tokens"
            )
        elif self.answer().calls and not self._parser.ends_in_call:
            self._stop_reason = "tool_use"
        elif isinstance(chunk.stop_reason, str):
            self._stop_reason, self._stop_sequence = "stop_sequence", chunk.stop_reason
        else:
            self._stop_reason = "end_turn"

    def _blocks(self) -> list[AnswerBlock]:
        """Return the blocks to which a stream's events add up."""
        blocks: list[tuple[AnswerBlock, list[str]]] = []
        """With the parts of their text, which are joined once: each addition would copy it."""
        uses: list[list[str]] = []
        for piece in self._pieces:
            last = blocks[-1][0] if blocks else None
            match piece:
                case TextPiece(text):
                    if not isinstance(last, AnswerText):
                        blocks.append((AnswerText(text=""), []))
                    blocks[-1][1].append(text)
                case Reasoning(text):
                    if not isinstance(last, AnswerThinking):
                        blocks.append((AnswerThinking(thinking=""), []))
                    blocks[-1][1].append(text)
                case CallStarted(_, call_id, name):
                    uses.append([])
                    blocks.append((AnswerToolUse(id=call_id, name=name, input={}), uses[-1]))
                case CallArguments(index, text):
                    uses[index].append(text)
        return [_filled(block, "".join(parts)) for block, parts in blocks]

    def _message(self, blocks: list[AnswerBlock]) -> AnswerMessage:
        return AnswerMessage(
            id=f"msg_{self._frame.key}",
            model=self._frame.model,
            content=blocks,
            stop_reason=self._stop_reason,
            stop_sequence=self._stop_sequence,
            usage=self._usage(),
        )

    def _usage(self) -> MessageUsage:
        return MessageUsage(
            input_tokens=self._num_prompt - self._num_cached,
            cache_creation_input_tokens=0,
            cache_read_input_tokens=self._num_cached,
            output_tokens=self._num_output,
            output_tokens_details=MessageTokensDetails(thinking_tokens=self._num_thinking),
        )


def _filled(block: AnswerBlock, text: str) -> AnswerBlock:
    match block:
        case AnswerText():
            block.text = text
        case AnswerThinking():
            block.thinking = text
        case AnswerToolUse():
            block.input = tool_input(text)
    return block


def tool_input(arguments: str) -> dict[str, Any]:
    """Return the arguments of a call as an object.

    Arguments that a token limit has truncated are parsed as far as possible, as Anthropic's own
    client parses a stream. A value that is not an object is wrapped, because ``input`` must be one.
    """
    try:
        value = from_json(arguments or "{}", allow_partial=True)
    except ValueError:
        value = arguments
    return value if isinstance(value, dict) else {"arguments": value}
