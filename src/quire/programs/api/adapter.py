"""Trait Adapter: LoRA adapters that the engine has loaded. Served by the engine."""

from __future__ import annotations

from collections.abc import Sequence

from quire.core.traits import Trait
from quire.programs.api.forward import Embeds, Pages, issue_forward
from quire.programs.api.handles import Queue
from quire.programs.api.issuer import nothing
from quire.programs.api.model import Model
from quire.programs.api.queued import TraitFunctions, queued
from quire.programs.api.reply import Reply


class AdapterFunctions(TraitFunctions):
    trait = Trait.ADAPTER

    def available_adapters(self, model: Model | None = None) -> list[str]:
        """Names of the adapters of ``model`` (default: the node's default model); may be empty.

        Each adapter is also an entry of `available_models`: commands on a queue of that model run
        with the adapter.
        """
        served = model.served if model is not None else self._issuer.model()
        return [adapter.name for adapter in served.info.adapters if not adapter.problem]

    @queued
    def forward_with_adapter(
        self,
        queue: Queue,
        adapter: str,
        ikv: Pages,
        iemb: Embeds,
        okv: Pages | Embeds = (),
        oemb: Embeds = (),
        mask: Sequence[Sequence[bool]] | None = None,
    ) -> Reply[None]:
        """`forward` with the adapter of that name; rows of one batch may have different adapters.

        K and V in ``ikv`` are used as they are, whichever adapter computed them.

        Raises:
            InvalidArgument: the model has no adapter of that name, or as for `forward`.
            UnknownHandle: a handle that this program does not hold.
        """
        return issue_forward(
            self._issuer, queue, (ikv, iemb, okv, oemb), mask, adapter, convert=nothing
        )
