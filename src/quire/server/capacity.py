"""The capacity of an engine, as one line of the log at the start."""

from __future__ import annotations

from quire.core.engine_info import EngineInfo
from quire.core.sizes import format_size


def capacity_line(info: EngineInfo, num_engines: int = 1) -> str:
    """Return memory and bounds of one of ``num_engines`` equal engines, to size a deployment by.

    A context has the model's full length. Layers with a window hold less of a long context, so the
    groups without one determine how many tokens fit.
    """
    pool = info.pool
    full = [group for group in pool.groups if not group.window] or list(pool.groups)
    num_blocks = min(group.num_blocks for group in full)
    num_tokens = num_blocks * pool.page_size
    device = sum(group.num_blocks * group.bytes_per_block for group in pool.groups)
    lower = {
        "host": sum(group.num_host_blocks * group.bytes_per_block for group in pool.groups),
        "disk": sum(group.num_disk_blocks * group.bytes_per_block for group in pool.groups),
    }
    tiers = "".join(f", {name} {format_size(size)}" for name, size in lower.items() if size)
    each = f"{num_engines} engines, each: " if num_engines > 1 else ""
    return (
        f"{each}{info.num_parameters / 1e6:,.1f} M parameters, {info.dtype} on {info.backend}; "
        f"KV cache {format_size(device)}{tiers}: "
        f"{num_blocks:,} pages of {pool.page_size}, {num_tokens:,} tokens, "
        f"{num_tokens / info.max_model_len:.1f} contexts of {info.max_model_len:,}; "
        f"at most {pool.max_sequences} sequences and {pool.max_batch_tokens} tokens a step"
    )
