"""What share of prompts the generating engines compute themselves, by load.

An engine that computes prompts is a queue. A token less for it is a token's time less for the
request itself, and for all that come behind it until the queue is empty: with jobs of about one
length and a share u of the engine's time taken, u (2 - u) / 2 (1 - u)^2 requests. A generating
engine has no queue: a token more for it delays the request itself and each answer that it gives
meanwhile, and the longer answers take the more of them are met. The best share is where both are
equal. It changes slowly: a share that goes up and down costs more than one that is a little off.

What comes in all is known from what requests meet when they come (its mean is that over all times,
as arrivals are independent), so no clock is read.
"""

from __future__ import annotations

import math

_SMOOTHING = 0.02
_NUM_BISECTIONS = 20


class ShareByLoad:
    """``most``: the largest share. Learns from the last requests, about a hundred."""

    def __init__(self, most: float) -> None:
        self._most = most
        self._num_seen = 0
        self._num_before = 0.0
        self._num_answers = 0.0
        self._share = 0.0

    def next(
        self, num_before: int, num_answers: int, cost: float = 1.0, num_senders: float = 1.0
    ) -> float:
        """For a request that finds ``num_before`` others at the engine that computes prompts and
        ``num_answers`` at the one that generates. ``cost``: of a token of a prompt at the latter
        over that at the former; ``num_senders``: engines that compute prompts for each one that
        generates."""
        self._num_seen += 1
        weight = max(_SMOOTHING, 1 / self._num_seen)
        self._num_before += weight * (num_before - self._num_before)
        self._num_answers += weight * (num_answers - self._num_answers)
        # all the prompts that come, over what a sender could compute
        work = _busy(self._num_before) / max(1e-9, 1 - self._share)
        low, high = 0.0, self._most
        for _ in range(_NUM_BISECTIONS):
            middle = (low + high) / 2
            lost = _lost(work * middle * num_senders, self._num_answers, cost)
            if _saved(work * (1 - middle)) > lost:
                low = middle
            else:
                high = middle
        self._share += weight * (low - self._share)
        return self._share


def _saved(busy: float) -> float:
    """By a token less for the sender, in times of a token."""
    return 1 + busy * (2 - busy) / (2 * (1 - busy) ** 2) if busy < 1 else math.inf


def _lost(work: float, num_answers: float, cost: float) -> float:
    """By a token more for the receiver, to which so much of the senders' work has come."""
    busy = work * cost
    return cost + cost * num_answers / (1 - busy) if busy < 1 else math.inf


def _busy(num_there: float) -> float:
    """The share of its time in which a server is busy that has so many jobs of one length, waiting
    or served, on average (Pollaczek and Khinchine)."""
    return 1 + num_there - math.sqrt(1 + num_there**2)
