"""Maps a checkpoint's ``quantization_config`` to its scheme. To add a scheme, add it here."""

from __future__ import annotations

from collections.abc import Callable

from quire.core.errors import UnsupportedModel
from quire.engine.checkpoint.config_reader import ConfigReader
from quire.engine.quantization.compressed_integers import CompressedIntegers
from quire.engine.quantization.float8 import Float8
from quire.engine.quantization.mxfp4 import MXFP4
from quire.engine.quantization.packed_integers import AWQ, GPTQ
from quire.engine.quantization.scheme import Scheme

SCHEMES: dict[str, Callable[[ConfigReader], Scheme]] = {
    "awq": AWQ,
    "gptq": GPTQ,
    "fp8": Float8,
    "mxfp4": MXFP4,
}
"""Schemes by ``quant_method``."""

COMPRESSED: dict[str, Callable[[ConfigReader], Scheme]] = {
    "pack-quantized": CompressedIntegers,
    "float-quantized": Float8,
    "naive-quantized": Float8,
}
"""Schemes by ``format``, if ``quant_method`` is compressed-tensors."""


def scheme_of(config: ConfigReader) -> Scheme | None:
    """The scheme of a ``config.json``; None if its weights are plain.

    Raises:
        UnsupportedModel: an unsupported scheme, or an unsupported variant of one.
    """
    section = config.section("quantization_config") or config.section("compression_config")
    if section is None:
        return None
    method = section.text("quant_method", "").lower()
    if method == "compressed-tensors":
        scheme = COMPRESSED.get(section.text("format", ""))
    else:
        scheme = SCHEMES.get(method)
    if scheme is None:
        shown = ", ".join(str(section.raw(one)) for one in ("quant_method", "format"))
        read = f"{', '.join(SCHEMES)} and compressed-tensors ({', '.join(COMPRESSED)})"
        raise UnsupportedModel(
            f"{config.where} holds quantised weights of a kind that is not read ({shown}); read "
            f"are {read}: use one of these, or the model's unquantised checkpoint"
        )
    return scheme(section)
