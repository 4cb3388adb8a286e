"""The share of each prompt that the generating engine computes itself, by load.

An engine that computes prompts is a queue. One token less for it saves the time of a token for the
request itself, and for all requests behind it until the queue is empty. If jobs have about the same
length and the engine is busy for a share u of its time, these are u (2 - u) / 2 (1 - u)^2 requests.
A generating engine has no queue. One token more for it delays the request itself and each answer
that it generates at that time; the longer answers take, the more are delayed. At the best share the
saved and the lost time are equal.

This share is for the mean load, and changes slowly. Arrivals come in bursts, and then one engine
has more to do than usual while the other has less: each request levels a part of this difference.
It is measured against its own mean, so levelling leaves the mean share as it is.

The load is the mean of what arriving requests find at the engines. Since arrivals are independent,
this equals the mean over time, so no clock is read.
"""

from __future__ import annotations

import math

_SMOOTHING = 0.02
_NUM_BISECTIONS = 20

_LEVELLED = 0.4
"""The part of a difference that a request levels. Half of it would level all: what moves is less
here and more there. By the time that a prompt is computed some of the difference has gone."""

_ANSWER = 0.15
"""What an unfinished answer weighs against a prompt that is to be computed."""


class ShareByLoad:
    """``most``: the largest share. Learns from about the last hundred requests."""

    def __init__(self, most: float) -> None:
        self._most = most
        self._num_seen = 0
        self._num_before = 0.0
        self._num_answers = 0.0
        self._difference = 0.0
        self._share = 0.0

    def next(
        self,
        num_before: int,
        num_answers: int,
        num_more: float = 0.0,
        *,
        cost: float = 1.0,
        num_senders: float = 1.0,
    ) -> float:
        """Return the share for a request that finds ``num_before`` others at the prefill engine and
        ``num_answers`` at the generating engine. ``num_more``: how many prompts like its own the
        prefill engine has to compute, less those that the generating engine has to; ``cost``: the
        cost of a prompt token at the generating engine divided by that at the prefill engine;
        ``num_senders``: prefill engines for each generating engine."""
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
        difference = num_more - _ANSWER * num_answers
        self._difference += weight * (difference - self._difference)
        levelling = _LEVELLED * (difference - self._difference)
        return min(self._most, max(0.0, self._share + levelling))


def _saved(busy: float) -> float:
    """Return the time saved by one token less for the sender, in times of a token."""
    return 1 + busy * (2 - busy) / (2 * (1 - busy) ** 2) if busy < 1 else math.inf


def _lost(work: float, num_answers: float, cost: float) -> float:
    """Return the time lost by one token more for the receiver. ``work``: the work that it has taken
    from the senders, in their time."""
    busy = work * cost
    return cost + cost * num_answers / (1 - busy) if busy < 1 else math.inf


def _busy(num_there: float) -> float:
    """Return the share of time in which a server is busy, from the average number of its jobs,
    waiting or served, if all have one length (Pollaczek and Khinchine)."""
    return 1 + num_there - math.sqrt(1 + num_there**2)
