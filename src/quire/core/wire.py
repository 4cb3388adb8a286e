"""Messages between processes: msgpack headers, arrays as raw frames, never pickle.

A message is a list of frames: the first is the msgpack header, the others are the buffers of its
numpy arrays, in the order in which the header names them. Decoded arrays are read-only views of the
frames. ``PROTOCOL_VERSION`` stands in every header; a peer with another one is refused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np

from quire.core.errors import ProtocolMismatch

PROTOCOL_VERSION = 1

Frame = bytes | memoryview

_DTYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(name) for name in ("int32", "int64", "uint64", "float32", "uint8")
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
"""numpy builds ``dtype.name`` anew each time, which costs more than the array."""

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
        """The frames of ``message``, header first. Array buffers are not copied."""
        frames: list[Frame] = []

        def array_out(value: Any) -> Any:
            if not isinstance(value, np.ndarray):
                raise TypeError(f"cannot send a {type(value).__name__}")
            frames.append(np.ascontiguousarray(value).data.cast("B") if value.size else b"")
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
            _check_version(frames[0])
            message: T = self._decoder.decode(frames[0])[1]
        except (msgspec.DecodeError, ValueError, TypeError) as exc:
            raise ProtocolMismatch(f"a message that cannot be read: {exc}") from exc
        finally:
            self._frames = ()
        return message

    def _array_in(self, type_: type, value: Any) -> Any:
        if getattr(type_, "__origin__", type_) is not np.ndarray:
            raise TypeError(f"no decoder for {type_}")
        name, shape, index = value
        if name not in _DTYPES:
            raise ValueError(f"arrays of dtype {name!r} are not sent")
        dtype = _DTYPES[name]
        if not 0 < index < len(self._frames) or any(size < 0 for size in shape):
            raise ValueError(f"array names frame {index} of {len(self._frames)}")
        if math.prod(shape) * dtype.itemsize != len(self._frames[index]):
            raise ValueError(f"array {name}{shape} does not fill its frame")
        array = np.frombuffer(self._frames[index], dtype).reshape(shape)
        array.flags.writeable = False
        return array


def _check_version(header: Frame) -> None:
    version, _ = msgspec.msgpack.decode(header, type=tuple[int, msgspec.Raw])
    if version != PROTOCOL_VERSION:
        raise ProtocolMismatch(
            f"the peer speaks protocol version {version}, this node {PROTOCOL_VERSION}: "
            "run the same release of quire on both sides"
        )


__all__ = ["PROTOCOL_VERSION", "Codec", "Frame"]
