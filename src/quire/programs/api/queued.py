"""Functions of a queue that may be left out, as in Pie's listings.

``api.forward(q, ikv, iemb, okv, oemb)`` and ``api.forward(ikv, iemb, okv, oemb)`` are both right;
the second goes to the program's default queue.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import (
    Any,
    ClassVar,
    Concatenate,
    Generic,
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
    cast,
    overload,
)

from quire.core.errors import TraitMissing
from quire.core.traits import Trait
from quire.programs.api.handles import Queue
from quire.programs.api.issuer import Issuer

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class TraitFunctions:
    """Base of a trait's functions: where they issue, and which trait a model must have."""

    trait: ClassVar[Trait]

    def __init__(self, issuer: Issuer) -> None:
        self._issuer = issuer

    def resolve(self, queue: Queue | None) -> Queue:
        """The queue to use: usable by this program, its model has the trait."""
        if queue is None:
            queue = self._issuer.default_queue()
        else:
            queue.check(self._issuer)
        if self.trait not in queue.lane.traits:
            raise TraitMissing(
                f"model {queue.lane.model.id!r} does not have the trait {self.trait}: ask "
                "available_traits(model) and choose another model"
            )
        return queue


F = TypeVar("F", bound=TraitFunctions)


class QueuedFunction(Protocol[P, R_co]):
    """A function bound to its trait, callable with or without a queue in front."""

    @overload
    def __call__(self, queue: Queue, /, *args: P.args, **kwargs: P.kwargs) -> R_co: ...

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...


class _Bound:
    """Implements ``QueuedFunction``: takes the queue off the arguments, or the default one."""

    __slots__ = ("__wrapped__", "_trait")

    def __init__(self, trait: TraitFunctions, function: Callable[..., Any]) -> None:
        self._trait = trait
        self.__wrapped__ = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        trait = self._trait
        if args and isinstance(args[0], Queue):
            return self.__wrapped__(trait, trait.resolve(args[0]), *args[1:], **kwargs)
        return self.__wrapped__(trait, trait.resolve(None), *args, **kwargs)


class queued(Generic[F, P, R]):  # noqa: N801 - a decorator
    """Decorates ``def function(self, queue, ...)`` of a trait."""

    def __init__(self, function: Callable[Concatenate[F, Queue, P], R]) -> None:
        self.function = function
        self.__doc__ = function.__doc__

    @overload
    def __get__(self, trait: None, owner: type[F]) -> Self: ...

    @overload
    def __get__(self, trait: F, owner: type[F]) -> QueuedFunction[P, R]: ...

    def __get__(self, trait: F | None, owner: type[F]) -> Self | QueuedFunction[P, R]:
        if trait is None:
            return self
        return cast("QueuedFunction[P, R]", _Bound(trait, self.function))
