"""What every route receives: the node, the configuration and the server's own services."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from starlette.requests import HTTPConnection

from quire.core.config import ServerConfig
from quire.core.ids import TenantId
from quire.node import Node
from quire.programs.workflow.applications import Applications
from quire.server.batches.service import BatchService
from quire.server.chat.prompt import ChatRenderer
from quire.server.files.store import FileStore
from quire.server.microserving.addresses import KvAddresses
from quire.server.microserving.channels import Channels
from quire.server.microserving.kept_answers import KeptAnswers
from quire.server.microserving.live_index import LiveIndex
from quire.server.microserving.once import OnceByRequest
from quire.server.page import PageFile
from quire.server.programs.live_changes import LiveChanges
from quire.server.responses.conversations import ConversationStore
from quire.server.responses.store import ResponseStore
from quire.server.series.metrics import ServerMetrics


@dataclass(frozen=True, slots=True)
class ServerContext:
    """The context of one application. ``started_unix_s`` is the ``created`` of the models."""

    node: Node
    config: ServerConfig
    renderer: ChatRenderer
    metrics: ServerMetrics
    responses: ResponseStore
    conversations: ConversationStore
    files: FileStore
    batches: BatchService
    live: LiveChanges
    index: LiveIndex
    addresses: KvAddresses
    once: OnceByRequest
    kept: KeptAnswers
    channels: Channels
    page: Mapping[str, PageFile]
    workflows: Applications
    started_unix_s: int


def context_of(connection: HTTPConnection) -> ServerContext:
    return cast(ServerContext, connection.app.state.quire)


def caller_of(connection: HTTPConnection) -> TenantId:
    """Return the tenant that ``KeyMiddleware`` found."""
    return cast(TenantId, connection.state.tenant)


def request_id_of(connection: HTTPConnection) -> str:
    return cast(str, connection.state.request_id)
