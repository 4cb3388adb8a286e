"""Chooses an encoder's instance for a batch."""

from __future__ import annotations

from collections.abc import Iterable

from quire.control.engines.encoder_pool import EncoderInstance


def least_loaded(instances: Iterable[EncoderInstance]) -> EncoderInstance | None:
    """The instance with the fewest tokens in flight, of those that can take a batch, the first of
    equals; None if no instance can."""
    free = [instance for instance in instances if instance.has_room]
    return min(free, key=lambda one: one.num_tokens_in_flight, default=None)


def share_of_batch(instances: Iterable[EncoderInstance], num_waiting: int, most: int) -> int:
    """The number of tokens to fill the next batch to: ``most``, or less if the waiting tokens can
    be divided among several idle instances."""
    num_idle = sum([instance.is_idle for instance in instances])
    return most if num_idle <= 1 else min(most, -(-num_waiting // num_idle))
