"""A device of its own for tests without one: tensors that say ``other:0`` and lie on the CPU.

What PyTorch refuses on a real device is refused here: an operation on tensors of two devices, and
numpy's view of a tensor that is not on the host. So tests find what would fail in the first run on
a device, except for kernels and libraries that need one. Copies and indexing accept what PyTorch
accepts. The modes belong to the thread that entered them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map_only
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

_setup_privateuseone_for_python_backend("other")
DEVICE = torch.device("other", 0)

_MAKERS = (
    *(torch.arange, torch.as_tensor, torch.empty, torch.eye, torch.full, torch.linspace),
    *(torch.ones, torch.rand, torch.randint, torch.randn, torch.tensor, torch.zeros),
)
_COPIES = ("copy_", "_to_copy")
_INDEXING = ("index", "index_put_", "index_put", "_index_put_impl_")


class OtherDeviceTensor(Tensor):
    """``inner``: the numbers, on the CPU."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> OtherDeviceTensor:
        made = Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=DEVICE,
        )
        made.inner = inner
        return made

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"OtherDeviceTensor({self.inner})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = func.__name__.split(".")[0]
        if name == "_fused_sdp_choice":
            return 0  # the plain formula, which is made of operations that are checked here
        _refuse_two_devices(name, (args, kwargs))
        on_device = torch.device(kwargs["device"]) if kwargs.get("device") else DEVICE
        if name in _COPIES[1:] or "device" in kwargs:
            kwargs["device"] = torch.device("cpu")
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        result = func(*_inner(args), **_inner(kwargs))
        if name.endswith("_") and not name.startswith("__"):
            return args[0]
        return result if on_device.type == "cpu" else _outer(result)


def _refuse_two_devices(name: str, values: Any) -> None:
    tensors = [one for one in tree_flatten(values)[0] if isinstance(one, Tensor)]
    here = [one for one in tensors if not isinstance(one, OtherDeviceTensor)]
    if name in _COPIES:
        return
    if name in _INDEXING and isinstance(tensors[0], OtherDeviceTensor):
        here = [one for one in here if one.dtype not in (torch.int64, torch.int32, torch.bool)]
    if any(one.dim() for one in here):
        shapes = [(tuple(one.shape), str(one.device)) for one in tensors]
        raise RuntimeError(f"{name}: expected all tensors on one device, but there are {shapes}")


def _inner(values: Any) -> Any:
    return tree_map_only(OtherDeviceTensor, lambda one: one.inner, values)


def _outer(values: Any) -> Any:
    return tree_map_only(Tensor, OtherDeviceTensor, values)


class _Makers(TorchFunctionMode):
    """Makes tensors of the device where PyTorch would ask its driver for memory."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if kwargs.pop("pin_memory", False):
            assert not _is_there(kwargs.get("device")), "only memory of the host can be pinned"
        if func in _MAKERS and _is_there(kwargs.get("device")):
            kwargs["device"] = torch.device("cpu")
            return OtherDeviceTensor(func(*args, **kwargs))
        if func is Tensor.to:
            return _moved(args, kwargs)
        if func is Tensor.tolist and isinstance(args[0], OtherDeviceTensor):
            return args[0].inner.tolist()
        return func(*args, **kwargs)


def _is_there(device: Any) -> bool:
    return device is not None and torch.device(device).type == DEVICE.type


def _moved(args: Any, kwargs: dict[str, Any]) -> Tensor:
    tensor, *rest = args
    is_there = isinstance(tensor, OtherDeviceTensor)
    places = [one for one in (*rest, kwargs.get("device")) if isinstance(one, torch.device | str)]
    places += [one.device for one in rest if isinstance(one, Tensor)]
    goes_there = _is_there(places[0]) if places else is_there
    inner = tensor.inner if is_there else tensor
    types = [one for one in (*rest, kwargs.get("dtype")) if isinstance(one, torch.dtype)]
    types += [one.dtype for one in rest if isinstance(one, Tensor)]
    moved: Tensor = inner.to(types[0]) if types else inner
    if goes_there == is_there:
        if moved is inner:
            return tensor
    elif moved is inner:
        moved = inner.clone()
    return OtherDeviceTensor(moved) if goes_there else moved


@contextmanager
def other_device() -> Iterator[torch.device]:
    """Within it, ``device="other"`` is the device of this module."""
    with _Makers():
        yield DEVICE
