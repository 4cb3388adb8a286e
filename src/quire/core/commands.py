"""The commands that a program puts on its queues: the programming interface (Pie Table 1).

Every command is in the FIFO of one queue; a queue belongs to one (model, engine). Ids are chosen by
the issuer, so a program can allocate, use and free pages without one round trip. The control layer
validates a command when it is issued and answers each with exactly one end: done, failed or
cancelled. ``after`` names commands of *other* queues of the same program that must be done first;
within a queue order is implied.

Pages. A page has ``page_size`` slots; a slot is empty or written at a position. ``Forward`` and
``Decode`` append their tokens in order at the fill cursor of ``output`` pages; a page may be in
``context`` and ``output`` at once. Visible to a new token: the written, unmasked slots of
``context`` at lower positions, the new tokens of the same command at lower positions, and itself.
An explicit mask replaces this rule (but never shows an empty or masked slot).
"""

from __future__ import annotations

from typing import Literal

import msgspec

from quire.core.command_base import CommandBase
from quire.core.decoding import Dist, GrammarSpec, SamplerSpec, StopSpec
from quire.core.errors import ErrorRecord
from quire.core.ids import EmbedId, PageId, TokenSlotId
from quire.core.lease_commands import LeaseCommand


class AllocPages(CommandBase, frozen=True, kw_only=True):
    """Take ``pages`` into the program's address space, empty. Blocks are bound at the first
    write."""

    pages: list[PageId]


class DeallocPages(CommandBase, frozen=True, kw_only=True):
    """Give pages back when this command is reached in the queue. Freeing a page twice is an
    error."""

    pages: list[PageId]


class AllocEmbeds(CommandBase, frozen=True, kw_only=True):
    embeds: list[EmbedId]


class DeallocEmbeds(CommandBase, frozen=True, kw_only=True):
    embeds: list[EmbedId]


class ExportPages(CommandBase, frozen=True, kw_only=True):
    """Publish a snapshot (block, fill, positions, mask) of ``pages`` under ``name``.

    Programs of the same tenant can import it until the owner releases it (``ReleaseExport``), or
    until ``ttl_s`` seconds pass without an import. With ``ttl_s`` ``None`` it stays as long as the
    owner lives.

    ``tokens``: the text that the pages hold, and at most one token more, for importers; control
    keeps it with the export and does not compare it with the pages.
    """

    pages: list[PageId]
    name: str
    ttl_s: float | None = 600.0
    tokens: list[int] | None = None


class ReleaseExport(CommandBase, frozen=True, kw_only=True):
    name: str


class ListExports(CommandBase, frozen=True, kw_only=True):
    """List the exports that this program could import on this queue. The reply is an ``Exports``.

    ``prefix``: only those whose names begin with it.
    """

    prefix: str = ""


class ImportPages(CommandBase, frozen=True, kw_only=True):
    """Map the export ``name`` into this program. The reply is an ``Imported``.

    The issuer offers ``pages`` ids, at least as many as the export has pages (the error for too few
    states how many); ids that are not used stay free.
    """

    name: str
    pages: list[PageId]


class ImportPrefix(CommandBase, frozen=True, kw_only=True):
    """Map the longest indexed run of full canonical pages that holds a prefix of ``tokens``.

    The reply is an ``Imported`` (possibly of no pages). At least one token is always left over, so
    that its distribution can be computed. ``pages`` must offer ``len(tokens) // page_size`` ids.
    ``adapter``: map pages that were computed with this adapter (None: with the base model).
    """

    tokens: list[int]
    pages: list[PageId]
    adapter: str | None = None


class CopyPage(CommandBase, frozen=True, kw_only=True):
    """Copy ``num_slots`` written slots, K and V and position, from ``source`` into ``target``."""

    source: PageId
    source_offset: int
    target: PageId
    target_offset: int
    num_slots: int


class MaskPage(CommandBase, frozen=True, kw_only=True):
    """Set the holder's mask of one page: ``visible[i]`` false hides slot ``i`` from attention."""

    page: PageId
    visible: list[bool]


class RepositionPage(CommandBase, frozen=True, kw_only=True):
    """Take the written slots of ``page`` ``shift`` positions on (back, if it is negative).

    Their K is turned as if the rotary embedding had put it there; V, fill and mask stay. Other
    holders of the page keep it as it is: the page is copied first if it is shared.
    """

    page: PageId
    shift: int


class TruncatePage(CommandBase, frozen=True, kw_only=True):
    """Forget the slots of ``page`` from ``fill`` on; the fill cursor moves back there."""

    page: PageId
    fill: int


class EmbedText(CommandBase, frozen=True, kw_only=True):
    """Write the embeddings of tokens, at explicit positions, into embeds (Pie ``embed_txt``).

    A token is a literal id or, where ``token_slots`` is given, the token in that slot (run ahead).
    """

    tokens: list[int]
    positions: list[int]
    embeds: list[EmbedId]
    token_slots: list[TokenSlotId] | None = None


class EmbedImage(CommandBase, frozen=True, kw_only=True):
    """Write the embeddings of an image, at explicit positions, into embeds (Pie ``embed_img``).

    ``image``: a file's bytes in one of the formats of ``EngineInfo.images``, which also states how
    many embeds an image takes, or the image's pixels (``quire.engine.vision.framing``). The K and V
    of images are opaque: the prefix index holds no images. ``refusal``: the reason why the file
    could not be decoded; the command fails with it.
    """

    image: bytes
    positions: list[int]
    embeds: list[EmbedId]
    refusal: ErrorRecord | None = None


class Forward(CommandBase, frozen=True, kw_only=True):
    """Run the transformer over ``inputs`` (Pie ``forward``).

    ``context``  pages to attend to, in any order; they may be partly filled and have gaps.
    ``inputs``   embeds written by ``EmbedText`` (or earlier outputs), one per new token.
    ``output``   pages that receive K and V of the new tokens; empty: they are not kept.
    ``outputs``  embeds that receive the final hidden state of the **last** ``len(outputs)`` inputs.
    ``mask``     explicit visibility, one row per new token over [every slot of ``context`` in list
                 order (``page_size`` per page), then the new tokens]; rows of equal length.
    ``adapter``  name of the LoRA adapter to run with, None for the base model.
    ``scores``   whether to return the attention mass of the new tokens, for each slot of
                 ``context`` or only for each page; the reply is then ``AttentionScores``.
    """

    context: list[PageId]
    inputs: list[EmbedId]
    output: list[PageId]
    outputs: list[EmbedId]
    mask: list[list[bool]] | None = None
    adapter: str | None = None
    scores: Literal["pages", "slots"] | None = None


class GetNextDist(CommandBase, frozen=True, kw_only=True):
    """The next-token distribution after each of ``embeds``; the reply is ``Dists``."""

    embeds: list[EmbedId]
    top_k: int = 256


class Sample(CommandBase, frozen=True, kw_only=True):
    """Sample one token after each of ``embeds``; the reply is ``Sampled``.

    With ``token_slots`` the tokens also stay on the device in these slots. ``positions`` feed the
    counter-based random numbers; ``history`` feeds penalties.
    """

    embeds: list[EmbedId]
    sampler: SamplerSpec
    positions: list[int]
    token_slots: list[TokenSlotId] | None = None
    history: list[int] | None = None


class Decode(CommandBase, frozen=True, kw_only=True):
    """A whole generation loop as one command: run ``tokens``, then sample, append, stop.

    ``tokens`` (at least one) are run at ``position``, ``position + 1``, ...: long inputs in chunks,
    under the token budget. Then tokens are sampled until ``stop`` or the grammar ends the loop or
    the ``output`` pages are full. The last sampled token has not been run: its K and V are not in
    the pages. Replies are ``DecodeChunk``s.

    ``stream``: a reply for each batch message that has sampled some tokens; otherwise one for all
    of them, at the end, which saves control and its shell a visit per token. If the command fails
    or is cancelled, the tokens sampled so far are sent first.

    ``cache``: when ``context`` and ``output`` hold a canonical prefix (plain causal tokens from
    position 0), pages of ``tokens`` that the prefix index already has are mapped instead of
    computed, and full pages enter the index as they fill.

    ``adapter``: name of the LoRA adapter to run with, None for the base model. The prefix index
    keeps the pages of each apart.

    ``refusal``: the reason why the grammar cannot be used; the command fails with it.

    ``num_generated``: how many of the last tokens of ``history`` and ``tokens`` were sampled before
    this command, by another engine or another program. The grammar, stop strings and penalties go
    on behind them; ``stop`` bounds the tokens that are sampled here.
    """

    context: list[PageId]
    output: list[PageId]
    tokens: list[int]
    position: int
    sampler: SamplerSpec
    stop: StopSpec
    grammar: GrammarSpec | None = None
    num_logprobs: int | None = None
    num_prompt_logprobs: int | None = None
    history: list[int] | None = None
    cache: bool = True
    adapter: str | None = None
    refusal: ErrorRecord | None = None
    num_generated: int = 0
    stream: bool = True


class Synchronize(CommandBase, frozen=True, kw_only=True):
    """Done when every earlier command of the queue has ended. Answered on a poisoned queue too."""


Command = (
    AllocPages
    | DeallocPages
    | AllocEmbeds
    | DeallocEmbeds
    | ExportPages
    | ReleaseExport
    | ListExports
    | ImportPages
    | ImportPrefix
    | CopyPage
    | MaskPage
    | RepositionPage
    | TruncatePage
    | EmbedText
    | EmbedImage
    | Forward
    | GetNextDist
    | Sample
    | Decode
    | Synchronize
    | LeaseCommand
)


class ImportedPage(msgspec.Struct, frozen=True):
    """One imported page: how far it is filled, its positions and its mask."""

    page: PageId
    fill: int
    positions: list[int]
    visible: list[bool]


class Imported(msgspec.Struct, frozen=True, tag=True):
    """The reply to ``ImportPages`` and ``ImportPrefix``. ``tokens``: the text of the pages as the
    exporter gave it; ``None`` if it gave none, and for a prefix."""

    pages: list[ImportedPage]
    num_tokens: int
    tokens: list[int] | None = None


class ExportedPages(msgspec.Struct, frozen=True):
    """One export. ``expires_in_s``: seconds until it expires without an import; ``None``: it lives
    as long as its owner.

    ``own``: whether the asking program may release it, because it owns it or the owner has ended.
    """

    name: str
    num_pages: int
    num_tokens: int
    expires_in_s: float | None
    own: bool


class Exports(msgspec.Struct, frozen=True, tag=True):
    """The reply to ``ListExports``, sorted by name."""

    exports: list[ExportedPages]


class Dists(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The reply to ``GetNextDist``, one entry per embed."""

    dists: list[Dist]


class Sampled(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The reply to ``Sample``, one token per embed."""

    token_ids: list[int]


class AttentionScores(msgspec.Struct, frozen=True, tag=True):
    """The reply to a ``Forward`` with ``scores``: the attention mass of its new tokens per layer.

    The mass of a slot in a layer is the sum, over the command's new tokens, of the probability that
    the softmax of attention gives to the slot, averaged over the query heads. The masses of a layer
    therefore sum to the number of new tokens (less the share of attention sinks, which have no
    slot, and of tokens that see nothing).

    ``pages`` [L, P] mass of each page of ``context`` · ``slots`` [L, P * page_size] mass of each of
    its slots, empty unless asked for · ``inputs`` [L, T] mass of the new tokens themselves, in
    order. They count here even if their K and V go to a page that is also in ``context``; that page
    then shows only the slots that it held before. Row-major float32, little-endian.
    """

    num_layers: int
    num_pages: int
    page_size: int
    num_inputs: int
    pages: bytes
    inputs: bytes
    slots: bytes = b""
