"""Which instance of an encoder a batch goes to."""

from __future__ import annotations

from collections.abc import Iterable

from quire.control.engines.encoder_pool import EncoderInstance


def least_loaded(instances: Iterable[EncoderInstance]) -> EncoderInstance | None:
    """The one with the fewest tokens in flight of those that can take a batch, the first of equals;
    None if none can."""
    free = [instance for instance in instances if instance.has_room]
    return min(free, key=lambda one: one.num_tokens_in_flight, default=None)


def share_of_batch(instances: Iterable[EncoderInstance], num_waiting: int, most: int) -> int:
    """How many tokens the next batch is filled to: ``most``, or less where what waits does for
    several instances that are idle."""
    num_idle = sum([instance.is_idle for instance in instances])
    return most if num_idle <= 1 else min(most, -(-num_waiting // num_idle))
