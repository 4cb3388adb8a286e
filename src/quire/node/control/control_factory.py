"""Builds a controller from a configuration, in the same way for the node and for ``replay``."""

from __future__ import annotations

from quire.control import Controller
from quire.core.config import TenantConfig
from quire.core.policy import DispatchPolicy
from quire.core.scheduler_config import SchedulerConfig
from quire.core.tracing import TraceListener


def make_controller(
    scheduler: SchedulerConfig,
    tenants: tuple[TenantConfig, ...],
    dispatch: DispatchPolicy | None = None,
    listener: TraceListener | None = None,
) -> Controller:
    """A controller without engines and programs.

    Raises:
        ConfigError: no such policy, or an impossible figure.
    """
    return Controller(scheduler, tenants=tenants, dispatch=dispatch, listener=listener)
