"""What all programs of one tenant have in control together, and how much that may be.

A quota bounds one program and those below it; a tenant may launch many. The account counts what
control remembers, which costs memory that all tenants share. Owns the counts and their bounds; the
code that creates or drops a thing changes the count. Exports are counted by their own table.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from quire.core.config import TenantTotals
from quire.core.errors import NeverWithinQuota, QuotaExceeded
from quire.core.ids import TenantId


@dataclass(slots=True)
class Account:
    """The account of one tenant. ``num_pages`` and ``num_embeds`` are those that exist: one that is
    being freed or offered to an import counts until it is gone."""

    tenant: TenantId
    totals: TenantTotals = field(default_factory=TenantTotals)
    num_queues: int = 0
    num_commands: int = 0
    num_pages: int = 0
    num_embeds: int = 0

    def require(self, total: str, num_held: int, num_more: int, what: str) -> None:
        """Raise ``QuotaExceeded`` unless the tenant may have ``num_more`` more of ``what``."""
        limit: int = getattr(self.totals, total)
        if num_held + num_more > limit:
            kind = QuotaExceeded if num_more <= limit else NeverWithinQuota
            first = "let go of some first" if num_more <= limit else "ask for fewer"
            raise kind(
                f"{num_held} {what} by the programs of this tenant together, {num_more} more are "
                f"asked for and {limit} are allowed: {first}, or have {total} raised in the "
                "tenant's totals",
                **{total: limit},
            )
