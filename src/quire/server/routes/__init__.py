"""The routes, one module per group. Each is thin: parse, identify, start a program, format."""

from quire.server.routes import (
    attach,
    batches,
    changes,
    chat_completions,
    completions,
    conversations,
    encoding,
    files,
    handed_programs,
    health,
    messages,
    metrics,
    microserving,
    models,
    programs,
    responses,
    sessions,
    tokenize,
    traces,
    ui,
    uploads,
    version,
    workflows,
)

ROUTERS = (
    chat_completions.router,
    completions.router,
    responses.router,
    conversations.router,
    messages.router,
    encoding.router,
    microserving.router,
    handed_programs.router,
    files.router,
    batches.router,
    models.router,
    tokenize.router,
    uploads.router,  # before ``programs``, whose ids would match its path
    changes.router,  # for the same reason
    programs.router,
    traces.router,
    attach.router,
    workflows.router,
    sessions.router,
    health.router,
    version.router,
    metrics.router,
    ui.router,
)

__all__ = ["ROUTERS"]
