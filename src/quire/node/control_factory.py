"""How a controller is built from a configuration; the node and ``replay`` must do it alike."""

from __future__ import annotations

from quire.control import Controller
from quire.core.config import SchedulerConfig, TenantConfig
from quire.core.interfaces import DispatchPolicy


def make_controller(
    scheduler: SchedulerConfig,
    tenants: tuple[TenantConfig, ...],
    dispatch: DispatchPolicy | None = None,
) -> Controller:
    """A controller with no engine and no program yet.

    Raises:
        ConfigError: no such policy, or an impossible figure.
    """
    return Controller(scheduler, tenants=tenants, dispatch=dispatch)
