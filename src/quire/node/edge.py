"""The names that ``quire.node`` exports: what an edge needs. Nothing here imports torch."""

from quire.node.control.replaying import Divergence, ReplayReport, replay
from quire.node.encoder_package import ENCODER_PACKAGE, installed_encoder
from quire.node.latency import EngineLatencies, HistogramSnapshot
from quire.node.metrics import NodeChanges, NodeStatistics, ProcessRecord
from quire.node.models import ModelFiles, check_sources, read_model_files, resolve_source
from quire.node.node import Node
from quire.node.programs.handle import ProgramHandle
from quire.node.programs.message_log import MailboxMessage, MessageReader
from quire.node.programs.records import ProgramLogLine, ProgramRecord
from quire.node.sessions.calls import BuiltIn, SessionCall
from quire.node.sessions.conversations import ConversationTurn
from quire.node.sessions.handle import SessionHandle
from quire.node.sessions.kept_pages import KeptPages
from quire.node.sessions.sessions import SessionLimits
from quire.node.shipped import SHIPPED_MODEL, SHIPPED_READER
from quire.node.supervision.health import EngineHealth, EngineReadiness, NodeHealth
from quire.node.supervision.supervisor import RestartLimits
from quire.node.tracing.classes import ClassFigures
from quire.node.tracing.from_log import LogTrace, trace_log
from quire.node.tracing.reading import NodeTrace, TracedProgram, TraceReader, waits
from quire.node.tracing.sending import SpanCounts

__all__ = [
    "ENCODER_PACKAGE",
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
    "check_sources",
    "installed_encoder",
    "read_model_files",
    "replay",
    "resolve_source",
    "trace_log",
    "waits",
]
