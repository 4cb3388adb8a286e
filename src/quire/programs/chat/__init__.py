"""The text side of conversations: messages to prompts, tokens to text, text to calls.

Used by the SDK and by servers. Knows no HTTP and no wire format.
"""

from quire.programs.chat.answer import AnswerParser, parse_answer
from quire.programs.chat.detokenize import TextStream
from quire.programs.chat.dialects import Dialect, dialect_taught_by, marker_tokens
from quire.programs.chat.hermes_calls import CALL_END, CALL_START
from quire.programs.chat.messages import (
    for_template,
    parsed_arguments,
    template_call,
    turn_messages,
)
from quire.programs.chat.pieces import (
    Answer,
    Call,
    CallArguments,
    CallStarted,
    Piece,
    Reasoning,
    TextPiece,
    whole_answer,
)
from quire.programs.chat.reasoning import THINK_START
from quire.programs.chat.template import ChatTemplate, Message, chat_template, dialect_of

__all__ = [
    "CALL_END",
    "CALL_START",
    "THINK_START",
    "Answer",
    "AnswerParser",
    "Call",
    "CallArguments",
    "CallStarted",
    "ChatTemplate",
    "Dialect",
    "Message",
    "Piece",
    "Reasoning",
    "TextPiece",
    "TextStream",
    "chat_template",
    "dialect_of",
    "dialect_taught_by",
    "for_template",
    "marker_tokens",
    "parse_answer",
    "parsed_arguments",
    "template_call",
    "turn_messages",
    "whole_answer",
]
