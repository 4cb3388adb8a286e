"""Functions whose queue argument may be omitted, as in Pie's listings.

``api.forward(q, ikv, iemb, okv, oemb)`` issues on queue ``q``, ``api.forward(ikv, iemb, okv,
oemb)`` on the program's default queue.
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
    """Base of a trait's functions: the issuer that they use, and the trait that a model must
    have."""

    trait: ClassVar[Trait]

    def __init__(self, issuer: Issuer) -> None:
        self._issuer = issuer

    def resolve(self, queue: Queue | None) -> Queue:
        """The queue to use, after checking that this program may use it and that its model has the
        trait."""
        if queue is None:
            queue = self._issuer.default_queue()
        else:
            queue.check(self._issuer)
        if self.trait not in queue.state.traits:
            raise TraitMissing(
                f"model {queue.state.model.id!r} does not have the trait {self.trait}: ask "
                "available_traits(model) and choose another model"
            )
        return queue


F = TypeVar("F", bound=TraitFunctions)


class QueuedFunction(Protocol[P, R_co]):
    """A function bound to its trait, callable with or without a queue as first argument."""

    @overload
    def __call__(self, queue: Queue, /, *args: P.args, **kwargs: P.kwargs) -> R_co: ...

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...


class _Bound:
    """Implements ``QueuedFunction``: uses the queue in the arguments, or the default queue."""

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
