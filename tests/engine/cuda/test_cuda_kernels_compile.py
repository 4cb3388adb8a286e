"""The kernels compile to machine code for every supported GPU generation; needs no device."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any

import pytest

from quire.engine.cuda.attention_launch import num_stages
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
    kernel: Any,
    constants: dict[str, Any],
    pointers: dict[str, str],
    generation: int,
    **options: Any,
) -> Any:
    """A compiled kernel whose pointers are of these types (int32 unless named)."""
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
    compiled = triton.compile(source, target=GPUTarget("cuda", generation, 32), options=options)
    assert compiled.asm["cubin"]
    return compiled


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
    stages = num_stages(128, 4 if dtype == "fp32" else 2, 160 << 10)
    pointers = {**values, **words, **sums}
    compile_kernel(kernel, constants, pointers, generation, num_stages=stages)


@pytest.mark.parametrize(
    ("generation", "kibibytes", "head_dim", "dtype"),
    [
        (80, 163, 128, "bf16"),
        (89, 99, 128, "bf16"),
        (89, 99, 256, "bf16"),
        (90, 227, 256, "bf16"),
        (90, 227, 256, "fp32"),
    ],
)
def test_attention_fits_into_shared_memory(
    generation: int, kibibytes: int, head_dim: int, dtype: str
) -> None:
    """``kibibytes``: shared memory per block (CUDA C++ Programming Guide, technical specifications
    by compute capability)."""
    constants = {
        "PAGE_SIZE": 16, "NUM_KV_HEADS": 8, "GROUP": 4, "HEAD_DIM": head_dim, "BLOCK_M": 64,
        "BLOCK_C": 64, "BLOCK_D": head_dim, "HAS_MASKS": True, "HAS_SOFTCAP": False,
        "HAS_SINKS": False, "PRECISION": "tf32" if dtype == "bf16" else "ieee",
    }  # fmt: skip
    values = dict.fromkeys(("q_ptr", "keys_ptr", "values_ptr", "out_ptr", "sinks_ptr"), dtype)
    words = dict.fromkeys(("words_ptr", "mask_words_ptr", "slots_ptr"), "i64")
    sums = dict.fromkeys(("partial_ptr", "statistics_ptr"), "fp32")
    stages = num_stages(head_dim, 2 if dtype == "bf16" else 4, kibibytes << 10)
    compiled = compile_kernel(
        load_kernels("attention").attention_kernel,
        constants,
        {**values, **words, **sums},
        generation,
        num_stages=stages,
    )
    assert compiled.metadata.shared <= kibibytes << 10


@GENERATIONS
def test_layers(generation: int) -> None:
    kernels = load_kernels("layers")
    heads = {
        "NUM_HEADS": 32, "NUM_KV_HEADS": 8, "HEAD_DIM": 128, "ROTARY_DIM": 128, "BLOCK_D": 128,
    }  # fmt: skip
    names = ("qk_ptr", "v_ptr", "cos_ptr", "sin_ptr", "q_out_ptr", "keys_ptr", "values_ptr")
    pointers = {**dict.fromkeys(names, "bf16"), "slots_ptr": "i64"}
    compile_kernel(kernels.rotate_write_kernel, heads, pointers, generation, num_warps=1)
    for activation in ("silu", "gelu_tanh", "clamped_swiglu"):
        shape = {"WIDTH": 8192, "ACTIVATION": activation, "BLOCK": 1024}
        pointers = {"gate_up_ptr": "bf16", "out_ptr": "bf16"}
        compile_kernel(kernels.gate_kernel, shape, pointers, generation)


@pytest.mark.parametrize("generation", [89, 90, 100])
def test_quantisation(generation: int) -> None:
    pointers = {"x_ptr": "bf16", "out_ptr": "fp8e4nv", "scale_ptr": "fp32"}
    constants = {"SIZE": 4096, "BLOCK": 2048}
    compile_kernel(load_kernels("products").quantize_kernel, constants, pointers, generation)


@GENERATIONS
@pytest.mark.parametrize("weights", ["bf16", "fp8e4nv"])
def test_pairs(generation: int, weights: str) -> None:
    if weights == "fp8e4nv" and generation < 89:
        pytest.skip("no such type before Ada")
    kernels = load_kernels("experts")
    pointers = {
        **dict.fromkeys(("x_ptr", "hidden_ptr", "out_ptr", "bias_ptr"), "bf16"),
        **dict.fromkeys(("scale_ptr", "shares_ptr"), "fp32"),
        "experts_ptr": "i64",
        "weight_ptr": weights,
    }
    constants = {
        "TOP_K": 8, "SIZE": 2048, "WIDTH": 768, "BLOCK_N": 8, "BLOCK_K": 512,
        "HAS_SCALES": weights != "bf16", "HAS_BIAS": True,
    }  # fmt: skip
    compile_kernel(kernels.pair_output_kernel, constants, pointers, generation)
    constants["ACTIVATION"] = "clamped_swiglu"
    compile_kernel(kernels.pair_hidden_kernel, constants, pointers, generation)


@GENERATIONS
def test_settle(generation: int) -> None:
    kernel = load_kernels("decode_state").settle_kernel
    pointers = dict.fromkeys((name for name in kernel.arg_names if name.endswith("_ptr")), "i64")
    pointers |= {"best_ptr": "fp32", "positions_ptr": "i32", "live_ptr": "u8", "failed_ptr": "u8"}
    constants = {"MAX_STOPS": 16, "STOPS_PADDED": 16, "BLOCK": 128, "NUM_BLOCKS": 2}
    compile_kernel(kernel, constants, pointers, generation)


@GENERATIONS
def test_merge(generation: int) -> None:
    constants = {
        "NUM_KV_HEADS": 8, "GROUP": 4, "HEAD_DIM": 128, "BLOCK_M": 16, "BLOCK_D": 128,
        "BLOCK_P": 16, "HAS_SINKS": True,
    }  # fmt: skip
    pointers = {
        "out_ptr": "bf16", "sinks_ptr": "bf16", "partial_ptr": "fp32", "statistics_ptr": "fp32",
    }  # fmt: skip
    compile_kernel(load_kernels("attention").merge_kernel, constants, pointers, generation)


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
    compile_kernel(products.linear_kernel, {**common, **tile}, pointers, generation)
    tile = {"BLOCK_M": 16, "BLOCK_N": 64, "NUM_EXPERTS": 128, "EXPERTS_PADDED": 128}
    compile_kernel(products.grouped_kernel, {**common, **tile}, pointers, generation)
