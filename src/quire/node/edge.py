"""The names that ``quire.node`` exports: what an edge needs. Nothing here imports torch."""

from quire.node.calls import BuiltIn, SessionCall
from quire.node.conversations import ConversationTurn
from quire.node.health import EngineHealth, EngineReadiness, NodeHealth
from quire.node.kept_pages import KeptPages
from quire.node.latency import EngineLatencies, HistogramSnapshot
from quire.node.message_log import MailboxMessage, MessageReader
from quire.node.metrics import NodeChanges, NodeStatistics, ProcessRecord
from quire.node.models import ModelFiles, read_model_files, resolve_source
from quire.node.node import Node
from quire.node.program_handle import ProgramHandle
from quire.node.program_records import ProgramLogLine, ProgramRecord
from quire.node.replaying import Divergence, ReplayReport, replay
from quire.node.session_handle import SessionHandle
from quire.node.sessions import SessionLimits
from quire.node.shipped import SHIPPED_MODEL, SHIPPED_READER
from quire.node.supervisor import RestartLimits
from quire.node.tracing.classes import ClassFigures
from quire.node.tracing.from_log import LogTrace, trace_log
from quire.node.tracing.reading import NodeTrace, TracedProgram, TraceReader, waits
from quire.node.tracing.sending import SpanCounts

__all__ = [
    "SHIPPED_MODEL",
    "SHIPPED_READER",
    "BuiltIn",
    "ClassFigures",
    "ConversationTurn",
    "Divergence",
    "EngineHealth",
    "EngineLatencies",
    "EngineReadiness",
    "HistogramSnapshot",
    "KeptPages",
    "LogTrace",
    "MailboxMessage",
    "MessageReader",
    "ModelFiles",
    "Node",
    "NodeChanges",
    "NodeHealth",
    "NodeStatistics",
    "NodeTrace",
    "ProcessRecord",
    "ProgramHandle",
    "ProgramLogLine",
    "ProgramRecord",
    "ReplayReport",
    "RestartLimits",
    "SessionCall",
    "SessionHandle",
    "SessionLimits",
    "SpanCounts",
    "TraceReader",
    "TracedProgram",
    "read_model_files",
    "replay",
    "resolve_source",
    "trace_log",
    "waits",
]
