"""Exports spans to OpenTelemetry, as OTLP over HTTP. The only module that imports
``opentelemetry``, and only if an endpoint is configured.

The exporter of the library reads the standard variables for its headers, certificates, timeout and
compression (``OTEL_EXPORTER_OTLP_*``), and its resource those for the service's name and attributes
(``OTEL_SERVICE_NAME``, ``OTEL_RESOURCE_ATTRIBUTES``).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from quire import __version__
from quire.core.errors import ConfigError
from quire.node.tracing.parents import SpanContext
from quire.node.tracing.sending import Export
from quire.node.tracing.spans import Span

if TYPE_CHECKING:
    from opentelemetry import trace

_TRACES_PATH = "/v1/traces"


def traces_url(endpoint: str) -> str:
    """The collector's address for traces: ``endpoint``; with ``/v1/traces`` if it has no path.

    Raises:
        ConfigError: it is not an HTTP address.
    """
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(
            f"--otlp-endpoint is {endpoint!r}: give the collector's HTTP address, as "
            "http://127.0.0.1:4318"
        )
    return endpoint if parts.path.strip("/") else endpoint.rstrip("/") + _TRACES_PATH


def make_export(endpoint: str) -> Export:
    """The function that sends spans to ``endpoint``. Raises ``ConfigError`` if that is no HTTP
    address, or without the extra ``otel``."""
    url = traces_url(endpoint)
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.sdk.trace.export import SpanExportResult
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope
        from opentelemetry.trace import Link, SpanKind, Status, StatusCode, TraceFlags
        from opentelemetry.trace import SpanContext as OtelContext
    except ImportError as exc:
        raise ConfigError(
            f"--otlp-endpoint needs OpenTelemetry ({exc}): pip install 'quire[otel]'"
        ) from exc
    # the sender counts failures and logs them once; the exporter would log each attempt
    logging.getLogger("opentelemetry.exporter.otlp").setLevel(logging.CRITICAL)
    resource = Resource.create({"service.version": __version__})
    if str(resource.attributes["service.name"]).startswith("unknown_service"):
        resource = resource.merge(Resource({"service.name": "quire"}))
    scope = InstrumentationScope("quire", __version__)
    exporter = OTLPSpanExporter(endpoint=url)

    def context_of(context: SpanContext, *, is_remote: bool) -> trace.SpanContext:
        flags = TraceFlags(TraceFlags.SAMPLED)
        return OtelContext(context.trace_id, context.span_id, is_remote, flags)

    def readable(span: Span) -> ReadableSpan:
        parent, link = span.parent, span.link
        return ReadableSpan(
            span.name,
            context=context_of(span.context, is_remote=False),
            parent=None if parent is None else context_of(parent, is_remote=span.is_remote),
            resource=resource,
            attributes=span.attributes,
            links=() if link is None else (Link(context_of(link, is_remote=False)),),
            kind=SpanKind.SERVER if span.is_remote else SpanKind.INTERNAL,
            status=Status(StatusCode.UNSET)
            if span.error is None
            else Status(StatusCode.ERROR, span.error),
            start_time=round(span.start_s * 1e9),
            end_time=round(span.end_s * 1e9),
            instrumentation_scope=scope,
        )

    def export(spans: Sequence[Span]) -> bool:
        return exporter.export([readable(span) for span in spans]) is SpanExportResult.SUCCESS

    return export
