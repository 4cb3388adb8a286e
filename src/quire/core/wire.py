"""Messages between processes: msgpack headers, arrays as raw frames, never pickle.

A message is a list of frames: the first is the msgpack header, the others are the buffers of its
numpy arrays, in the order in which the header names them. Decoded arrays are read-only views of the
frames. ``PROTOCOL_VERSION`` is in every header; a peer with another version is refused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np

from quire.core.errors import UNREADABLE, ProtocolMismatch

PROTOCOL_VERSION = 6

Frame = bytes | memoryview

_DTYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(name) for name in ("int32", "int64", "uint64", "float32", "uint8")
}
_COPIED_BYTES = 1 << 14
"""A buffer up to this size is copied, which is faster than taking a view of it."""

_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
"""A table, because numpy computes ``dtype.name`` anew on each access, at more than the array's
cost."""

_DOES_NOT_FIT = (*UNREADABLE, ValueError, TypeError)
"""The last two for arrays."""

_VERSIONED = msgspec.msgpack.Decoder(tuple[int, msgspec.Raw])

T = TypeVar("T")


class Codec(Generic[T]):
    """Encodes and decodes one tagged union (or struct) of messages.

    ``type_`` is what ``decode`` yields; a header that does not fit it raises ``ProtocolMismatch``.
    """

    def __init__(self, type_: Any) -> None:
        self._decoder = msgspec.msgpack.Decoder(
            tuple[int, type_],
            dec_hook=self._array_in,
        )
        self._frames: Sequence[Frame] = ()

    def encode(self, message: T) -> list[Frame]:
        """The frames of ``message``, header first. Large array buffers are not copied."""
        frames: list[Frame] = []

        def array_out(value: Any) -> Any:
            if not isinstance(value, np.ndarray):
                raise TypeError(f"cannot send a {type(value).__name__}")
            frames.append(_frame(value))
            return [_NAMES.get(value.dtype) or value.dtype.name, value.shape, len(frames)]

        header = msgspec.msgpack.encode((PROTOCOL_VERSION, message), enc_hook=array_out)
        return [header, *frames]

    def decode(self, frames: Sequence[Frame]) -> T:
        """The message in ``frames``.

        Raises:
            ProtocolMismatch: another version, or a header or array that does not fit.
        """
        if not frames:
            raise ProtocolMismatch("an empty message: the peer does not speak Quire's protocol")
        self._frames = frames
        try:
            decoded: tuple[int, T] = self._decoder.decode(frames[0])
        except _DOES_NOT_FIT as exc:
            raise _unreadable(frames[0], exc) from exc
        finally:
            self._frames = ()
        version, message = decoded
        if version != PROTOCOL_VERSION:
            raise _another_version(version)
        return message

    def _array_in(self, type_: type, value: Any) -> Any:
        if getattr(type_, "__origin__", type_) is not np.ndarray:
            raise TypeError(f"no decoder for {type_}")
        name, shape, index = value
        dtype = _DTYPES.get(name)
        if dtype is None:
            raise ValueError(f"arrays of dtype {name!r} are not sent")
        if not 0 < index < len(self._frames) or min(shape, default=0) < 0:
            raise ValueError(f"array names frame {index} of {len(self._frames)}")
        frame = self._frames[index]
        if math.prod(shape) * dtype.itemsize != len(frame):
            raise ValueError(f"array {name}{shape} does not fill its frame")
        array = np.frombuffer(frame, dtype)
        if type(frame) is not bytes:
            array.flags.writeable = False
        return array if len(shape) == 1 else array.reshape(shape)


def _frame(array: np.ndarray[Any, Any]) -> Frame:
    if array.nbytes <= _COPIED_BYTES:
        return array.tobytes()
    return np.ascontiguousarray(array).data.cast("B")


def _unreadable(header: Frame, why: Exception) -> ProtocolMismatch:
    """The error for a header that does not fit, possibly because of another version."""
    try:
        version, _ = _VERSIONED.decode(header)
    except _DOES_NOT_FIT:
        version = PROTOCOL_VERSION
    if version != PROTOCOL_VERSION:
        return _another_version(version)
    return ProtocolMismatch(f"a message that cannot be read: {why}")


def _another_version(version: int) -> ProtocolMismatch:
    return ProtocolMismatch(
        f"the peer speaks protocol version {version}, this node {PROTOCOL_VERSION}: "
        "run the same release of quire on both sides"
    )
