"""The kernels compile to machine code for every generation that is served; needs no device."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any

import pytest

from quire.engine.cuda.optional import load_kernels

pytestmark = [
    pytest.mark.skipif(
        find_spec("triton") is None or os.environ.get("TRITON_INTERPRET") == "1",
        reason="needs the package triton, and not its interpreter",
    ),
    pytest.mark.filterwarnings("ignore::UserWarning:triton"),
    pytest.mark.timeout(600),
]

GENERATIONS = pytest.mark.parametrize("generation", [80, 90, 100])
FORMATS = pytest.mark.parametrize(
    ("generation", "dtype", "precision"),
    [(80, "bf16", "tf32"), (90, "bf16", "tf32"), (100, "bf16", "tf32"), (90, "fp32", "ieee")],
)


def compile_kernel(
    kernel: Any, constants: dict[str, Any], pointers: dict[str, str], generation: int
) -> Any:
    """Machine code of a kernel whose pointers are of these types (int32 unless named)."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = {}
    for name in kernel.arg_names:
        if name in constants:
            signature[name] = "constexpr"
        elif name.endswith("_ptr"):
            signature[name] = "*" + pointers.get(name, "i32")
        else:
            signature[name] = "fp32" if name in ("scale", "softcap") else "i32"
    places = {name: (place,) for place, name in enumerate(kernel.arg_names)}
    source = ASTSource(
        fn=kernel,
        signature=signature,
        constexprs={places[name]: value for name, value in constants.items()},
        attrs={
            places[name]: [["tt.divisibility", 16]]
            for name, kind in signature.items()
            if kind.startswith("*")
        },
    )
    return triton.compile(source, target=GPUTarget("cuda", generation, 32)).asm["cubin"]


@FORMATS
@pytest.mark.parametrize("rows", [16, 64])
@pytest.mark.parametrize("extras", [False, True])
def test_attention(generation: int, dtype: str, precision: str, rows: int, extras: bool) -> None:
    constants = {
        "PAGE_SIZE": 16, "NUM_KV_HEADS": 8, "GROUP": 4, "HEAD_DIM": 128, "BLOCK_M": rows,
        "BLOCK_C": 64, "BLOCK_D": 128, "HAS_MASKS": extras, "HAS_SOFTCAP": extras,
        "HAS_SINKS": extras, "PRECISION": precision,
    }  # fmt: skip
    values = dict.fromkeys(("q_ptr", "keys_ptr", "values_ptr", "out_ptr", "sinks_ptr"), dtype)
    words = dict.fromkeys(("words_ptr", "mask_words_ptr", "slots_ptr"), "i64")
    sums = dict.fromkeys(("partial_ptr", "statistics_ptr"), "fp32")
    kernel = load_kernels("attention").attention_kernel
    assert compile_kernel(kernel, constants, {**values, **words, **sums}, generation)


@GENERATIONS
def test_merge(generation: int) -> None:
    constants = {
        "NUM_KV_HEADS": 8, "GROUP": 4, "HEAD_DIM": 128, "BLOCK_M": 16, "BLOCK_D": 128,
        "HAS_SINKS": True,
    }  # fmt: skip
    pointers = {
        "out_ptr": "bf16", "sinks_ptr": "bf16", "partial_ptr": "fp32", "statistics_ptr": "fp32",
    }  # fmt: skip
    assert compile_kernel(load_kernels("attention").merge_kernel, constants, pointers, generation)


@GENERATIONS
@pytest.mark.parametrize("weights", ["bf16", "fp8e4nv"])
def test_products(generation: int, weights: str) -> None:
    if weights == "fp8e4nv" and generation < 89:
        pytest.skip("no such type before Ada")
    pointers = {
        "x_ptr": "bf16", "out_ptr": "bf16", "bias_ptr": "bf16", "weight_ptr": weights,
        "scale_ptr": "fp32",
    }  # fmt: skip
    common = {
        "NUM_OUTPUTS": 768, "DEPTH": 2048, "HAS_SCALES": weights != "bf16", "HAS_BIAS": True,
        "PRECISION": "tf32", "BLOCK_K": 64,
    }  # fmt: skip
    products = load_kernels("products")
    tile = {"BLOCK_M": 64, "BLOCK_N": 32}
    assert compile_kernel(products.linear_kernel, {**common, **tile}, pointers, generation)
    tile = {"BLOCK_M": 16, "BLOCK_N": 64, "NUM_EXPERTS": 128, "EXPERTS_PADDED": 128}
    assert compile_kernel(products.grouped_kernel, {**common, **tile}, pointers, generation)
