"""Rewrites the words of an error in the spelling that the user of a command has typed.

Configurations name their fields as programs in Python write them; on the command line the same
field is an option: ``kv_cache_bytes`` is ``--kv-cache-bytes``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_RENAMED = {
    "levels.thresholds": "--policy-thresholds",
    "levels.quanta": "--policy-quanta",
    "levels.beta": "--policy-beta",
    "pausing.above": "--pause-above",
    "pausing.resume_below": "--resume-below",
    "pausing.max_s": "--max-pause",
    "pausing.max_hold_s": "--max-hold",
    "data_address": "--data-host",
    "num_engines": "--engines",
    "num_nodes": "--nodes",
    "num_programs": "--programs",
    "num_requests": "--programs",
    "record_path": "--record",
}
"""Fields whose options have other names."""

_PLAIN = ("backend", "device", "replicas", "seed", "weights", "width")
"""Fields whose names are also ordinary words: they are replaced only before a value."""

_BESIDE = r"[\w./'-]"
"""Characters of a path or a quoted value, in which a word is not replaced."""


def in_options(message: str, options: Mapping[str, str]) -> str:
    """Return ``message`` with the options of a command in place of the fields that they set.

    ``options``: those of the command, by the names of their fields.
    """
    known = {field: option for field, option in options.items() if "_" in field}
    known |= {field: option for field, option in _RENAMED.items() if option in options.values()}
    plain = {field: options[field] for field in _PLAIN if field in options}
    patterns = [rf"{re.escape(field)}(?!{_BESIDE})" for field in known]
    patterns += [rf"{field}(?= is | ')" for field in plain]
    if not patterns:
        return message
    every = known | plain
    return re.sub(
        rf"(?<!{_BESIDE})(?:{'|'.join(patterns)})", lambda found: every[found[0]], message
    )
