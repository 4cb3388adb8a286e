"""Whether a request with several choices fits the quotas of its program by itself.

Control refuses what does not fit *now* as retriable, because other requests of the session may give
pages back. It sees the choices one by one. This module sees the request as a whole: one that needs
more than the quota is refused for good, so that no client repeats it in vain.
"""

from __future__ import annotations

from collections.abc import Sequence

from quire.core.errors import NeverWithinQuota
from quire.core.quotas import Quotas
from quire.programs.builtin import CompletionRequest


def check_own_quota(quotas: Quotas, requests: Sequence[CompletionRequest], page_size: int) -> None:
    """Raise ``NeverWithinQuota`` if the choices of ``requests`` need more pages or queues than
    their program may have. A single choice is left to control, which knows its exact figures."""
    num_choices = sum(one.num_choices for one in requests)
    if num_choices == 1:
        return
    num_pages = sum(_num_pages(one, page_size) for one in requests)
    for limit, needed, what, quota in (
        (quotas.max_pages, num_pages, "pages", "max_pages"),
        (quotas.max_queues, num_choices, "queues", "max_queues"),
    ):
        if limit is not None and needed > limit:
            raise NeverWithinQuota(
                f"the {num_choices} choices of this request need {needed} {what} and the quota is "
                f"{limit}: ask for fewer choices or tokens, or send several requests",
                **{quota: limit},
            )


def _num_pages(request: CompletionRequest, page_size: int) -> int:
    """The least number of pages that all choices hold at the same time. Several share the full
    pages of the prompt. The last token needs no slot."""
    num_prompt = len(request.prompt)
    num_shared = (num_prompt - 1) // page_size if request.num_choices > 1 else 0
    num_own_slots = num_prompt - num_shared * page_size + max(request.max_tokens - 1, 0)
    return num_shared + request.num_choices * -(-num_own_slots // page_size)
