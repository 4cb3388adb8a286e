"""``KeptExperience``: the experience of applications, kept after their node has ended.

Owns one file of the data directory. The experience belongs to an application's template: another
template under the same name begins without any.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from quire.core.errors import UNREADABLE, InvalidArgument
from quire.programs.workflow.speculation.experience import MAX_COUNTED

MAX_COMPONENTS = 16384
"""The most components of all applications: the applications kept longest ago go first."""
MAX_OF_APPLICATION = 1024
MAX_NAME_CHARS = 256
TOLD_AT_ONCE = 16
"""The file is written after so many calls of ``keep``, and when the node ends."""

Seen = Mapping[str, tuple[float, int]]
"""How much was right, of how many, by component."""

_log = logging.getLogger(__name__)


class _Application(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    template: str
    seen: dict[str, tuple[float, int]]


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    applications: dict[str, _Application]


class KeptExperience:
    """``path``: the file, or None to keep it in memory. For any thread."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._known: dict[str, _Application] = {}
        self._num_told = 0
        self._lock = threading.Lock()

    def open(self) -> None:
        """Read the file, if there is one. One that cannot be read is logged and replaced: that
        costs some suppositions, but no answer."""
        if self._path is None or not self._path.exists():
            return
        try:
            read = msgspec.json.decode(self._path.read_bytes(), type=_File)
            for name, one in read.applications.items():
                _check(name, one.template, one.seen)
        except (OSError, *UNREADABLE, InvalidArgument) as exc:
            _log.warning("%s is not used, speculation learns anew: %s", self._path, exc)
            return
        with self._lock:
            self._known = dict(read.applications)

    def recall(self, application: str, template: str) -> Seen:
        """Return what was kept of an application; nothing for an unknown one."""
        with self._lock:
            known = self._known.get(application)
            return {} if known is None or known.template != template else dict(known.seen)

    def keep(self, application: str, template: str, seen: Seen) -> None:
        """Keep ``seen``, in place of what was kept of the application.

        Raises:
            InvalidArgument: too many components, too long names, or impossible numbers.
        """
        _check(application, template, seen)
        with self._lock:
            self._known.pop(application, None)
            self._known[application] = _Application(template, dict(seen))
            while sum(len(one.seen) for one in self._known.values()) > MAX_COMPONENTS:
                del self._known[next(iter(self._known))]
            self._num_told += 1
            if self._num_told >= TOLD_AT_ONCE:
                self._write()

    def close(self) -> None:
        with self._lock:
            if self._num_told:
                self._write()

    def _write(self) -> None:
        self._num_told = 0
        if self._path is None:
            return
        unfinished = self._path.with_suffix(".part")
        try:
            unfinished.write_bytes(msgspec.json.encode(_File(1, self._known)))
            os.replace(unfinished, self._path)
        except OSError as exc:
            _log.warning("%s is not written, what it says is older: %s", self._path, exc)
            with suppress(OSError):
                unfinished.unlink()


def _check(application: str, template: str, seen: Seen) -> None:
    names = (application, template, *seen)
    if len(seen) > MAX_OF_APPLICATION or max(map(len, names)) > MAX_NAME_CHARS:
        raise InvalidArgument(
            f"experience of {application[:MAX_NAME_CHARS]!r} has {len(seen)} components: give at "
            f"most {MAX_OF_APPLICATION}, with names of at most {MAX_NAME_CHARS} characters",
            param="seen",
        )
    for name, (num_right, num) in seen.items():
        if not 0 <= num_right <= num <= MAX_COUNTED:
            raise InvalidArgument(
                f"experience of {name!r} is {num_right} of {num}: give counts from 0 to "
                f"{MAX_COUNTED}",
                param="seen",
            )
