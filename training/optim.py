"""Optimises the matrices with Muon, the embedding and the norms with AdamW.

Muon (Jordan et al., 2024) replaces a matrix's momentum by the nearest orthogonal matrix, found with
a Newton-Schulz iteration.  Matrices of one shape are iterated as one batch.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5


def orthogonalize(matrices_KMN: Tensor, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Push the singular values of every matrix towards one; computed and returned in ``dtype``."""
    x: Tensor = matrices_KMN.to(dtype)
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    a, b, c = _COEFFICIENTS
    for _ in range(_ITERATIONS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


@dataclass(frozen=True, slots=True)
class Rates:
    """Peak learning rates; a schedule scales all of them alike."""

    matrix: float = 0.02
    embedding: float = 3e-3


class Muon:
    """Momentum with orthogonalised updates over two-dimensional parameters.

    ``dtype``: of the iteration; bf16 takes many times as long where a processor has no products
    of it.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        momentum: float = 0.95,
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        self.parameters = list(parameters)
        self.momentum, self.dtype = momentum, dtype
        self.buffers = [torch.zeros_like(p) for p in self.parameters]
        self._shapes: dict[tuple[int, int], list[int]] = {}
        for index, parameter in enumerate(self.parameters):
            low, high = sorted(parameter.shape)
            self._shapes.setdefault((low, high), []).append(index)

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Apply one update; every parameter must have a gradient."""
        for members in self._shapes.values():
            wide = []
            for index in members:
                gradient, buffer = self.parameters[index].grad, self.buffers[index]
                assert gradient is not None
                buffer.mul_(self.momentum).add_(gradient)
                update = gradient + self.momentum * buffer
                wide.append(update.T if update.shape[0] > update.shape[1] else update)
            updates = orthogonalize(torch.stack(wide), self.dtype)
            for index, update in zip(members, updates, strict=True):
                parameter = self.parameters[index]
                rows, columns = parameter.shape
                update = update.T if rows > columns else update
                scale = max(1.0, rows / columns) ** 0.5
                parameter.add_(update.to(parameter.dtype), alpha=-rate * scale)


class Optimizer:
    """Both optimisers over a model, with one scale for their rates."""

    def __init__(self, model: nn.Module, rates: Rates, dtype: torch.dtype = torch.bfloat16) -> None:
        named = list(model.named_parameters())
        matrices = [p for n, p in named if p.dim() == 2 and n != "embedding"]
        others = [p for n, p in named if p.dim() != 2 or n == "embedding"]
        self.rates = rates
        self.muon = Muon(matrices, dtype=dtype)
        self.adam = torch.optim.AdamW(others, betas=(0.9, 0.98), weight_decay=0.0, fused=True)

    def step(self, scale: float) -> None:
        """Apply one update with all rates multiplied by ``scale``, and clear the gradients."""
        for group in self.adam.param_groups:
            group["lr"] = self.rates.embedding * scale
        self.muon.step(self.rates.matrix * scale)
        self.adam.step()
        for parameter in self.muon.parameters:
            parameter.grad = None
        self.adam.zero_grad()

    def state_dict(self) -> dict[str, Any]:
        return {"muon": self.muon.buffers, "adam": self.adam.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for buffer, saved in zip(self.muon.buffers, state["muon"], strict=True):
            buffer.copy_(saved)
        self.adam.load_state_dict(state["adam"])
