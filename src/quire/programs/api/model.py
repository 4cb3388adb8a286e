"""A served model as seen by one program."""

from __future__ import annotations

from quire.core.ids import ModelId
from quire.core.interfaces import ServedModel, Tokenizer
from quire.programs.api.issuer import Issuer


class Model:
    """An entry of ``available_models``. ``Context(model)`` accepts it directly."""

    __slots__ = ("issuer", "served")

    def __init__(self, issuer: Issuer, served: ServedModel) -> None:
        self.issuer = issuer
        self.served = served

    @property
    def id(self) -> ModelId:
        return self.served.id

    @property
    def page_size(self) -> int:
        """Slots of one page."""
        return self.served.info.pool.page_size

    @property
    def max_model_len(self) -> int:
        """The largest number of positions that the model supports."""
        return self.served.info.max_model_len

    @property
    def max_tokens(self) -> int:
        """The largest number of tokens of one sequence on this node: ``max_model_len``, or the size
        of the pool if that is smaller."""
        return self.served.max_tokens

    @property
    def tokenizer(self) -> Tokenizer:
        return self.served.tokenizer

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return self.served.tokenizer.eos_token_ids

    def __repr__(self) -> str:
        return f"<Model {self.id}>"
