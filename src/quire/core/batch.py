"""The batch message: the work of one engine step or several, as flat arrays.

Control sends one ``Batch`` at a time and the engine answers each with one ``BatchResult``
(``batch_result``). The engine executes messages in order and schedules nothing: its results depend
on the messages and its memory alone. Within one message the stages run in this order:

1. ``operations``, in list order: page tables, copies, slots that move to other positions, opening
   and closing of sequences. Swaps only begin here (see *Transfers*).
2. ``embeds``: token embeddings into embed slots; ``images``: embeddings of images.
3. ``forward``: one ragged batch of rows. In each layer the K and V of *all* rows are written before
   any row attends, so a later row may see what an earlier row of the same message writes (vertical
   batching).
4. ``dists`` and ``samples`` over embed slots, and the first token of every sequence whose last
   prompt chunk ran in stage 3.
5. ``advance``: up to ``num_steps`` decode steps of the named sequences, and of those that got
   their first token in stage 4 (which counts as their first step). With prompt chunks in the same
   message, the first decode step and stage 3 form one batch.

A row that fails is reported and does not affect other rows. The memory that it should have written
is undefined but may be read: a message already sent may depend on it. Control drops those results.

Token values: ``>= 0`` is a token id; ``< 0`` is ``~token_slot``, the token that an earlier stage or
message left in that device slot.

Transfers. Each pair of blocks in a swap, a ``WriteDisk`` or a ``ReadDisk`` is one transfer. It
begins with its message and ends when the engine reports it (``TransfersEnded``), possibly many
messages later, in any order. Until then no message reads or writes its device block, and no other
transfer uses either of its blocks. A message holds at most one of these operations per direction.
The engine may therefore copy at any time; what leaves the device is copied as it was after the
preceding operations of its message. Only transfers from and to the disk may fail.

Exchange. ``SendSlots`` begins to send K, V and positions of slots to another engine, from the
device or from the host as they lie there; ``OpenReceive`` lets other engines write slots. Both run
beside later messages and end when the engine reports it, in any order: ``SendEnded``,
``ReceiveEnded``. Until then no message writes, moves or reuses a slot that is sent, and none reads
or writes a slot that is received. A ``SwapIn`` may read a host block that is sent. Unless it is
among the failures of its message, every ``SendSlots`` gets one ``SendEnded``, and every
``OpenReceive`` one ``ReceiveEnded`` if ``CloseReceives`` does not come first. In an engine without
``EngineInfo.data_address`` both end with an error.

Visibility. A page table entry is a block and a 64-bit word: bit ``i`` says that slot ``i`` is
written and unmasked for this holder. The engine stores the position of every written slot. A new
token at position p sees the visible slots of its table at positions < p, the new tokens of its row
at positions < p, and itself. A slot that a row writes and that is also in its table is seen once,
as a new token. When a *sequence* appends, the engine sets the bit in its table itself.

Layer groups. Layers that cache the same kind of block form a group (full attention, sliding window,
recurrent state); a page maps to one block or none in each. Operations name their ``group``.

Adapters (LoRA). A forward row and a sequence name an adapter by its index in
``EngineInfo.adapters``, or -1 for the base model; rows of one message may name different adapters.
K and V are those of the adapter that wrote them; a row attends to everything in its table.

Shapes: R rows, T new tokens, S sequences, E embeds, D distributions, M samples, A position axes
(1 for text, 3 for M-RoPE), G layer groups.
"""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from quire.core.decoding import GrammarSpec, SamplerSpec, StopSpec
from quire.core.exchange import SendTarget
from quire.core.ids import SequenceId, TableId

I32 = NDArray[np.int32]
U64 = NDArray[np.uint64]
F32 = NDArray[np.float32]


def no_i32() -> I32:
    return np.empty(0, np.int32)


class Operation(msgspec.Struct, tag=True, kw_only=True):
    """Base of the memory operations; they run in list order before everything else."""


class WriteTable(Operation, kw_only=True):
    """Set the table's entries from ``start`` on and cut off the entries after them.

    Creates the table if it is new (then ``start`` is 0).
    """

    table: TableId
    start: int
    blocks: I32
    visible: U64
    group: int = 0


class WriteEntries(Operation, kw_only=True):
    """Set entry ``entries[i]`` of table ``tables[i]`` and cut off the entries after it. All arrays
    have one length; one operation serves a step of many decode loops."""

    tables: I32
    entries: I32
    blocks: I32
    visible: U64
    group: int = 0


class DropTables(Operation, kw_only=True):
    tables: list[TableId]


class CopySlots(Operation, kw_only=True):
    """Copy K, V and position of flat slots (block * page_size + offset), every layer."""

    source: I32
    target: I32
    group: int = 0


class RepositionSlots(Operation, kw_only=True):
    """Move flat slots to other ``positions``: K is rotated, in every layer, to the value that the
    rotary embedding would have given it there; V is unchanged. Each slot may occur once."""

    slots: I32
    positions: I32
    group: int = 0


class SwapOut(Operation, kw_only=True):
    """Begin to copy whole device blocks to host blocks. Transfer ``transfers[i]`` copies block
    ``blocks[i]`` to ``host_blocks[i]``."""

    transfers: I32
    blocks: I32
    host_blocks: I32
    group: int = 0


class SwapIn(Operation, kw_only=True):
    """Begin to copy whole host blocks to device blocks, the reverse of ``SwapOut``."""

    transfers: I32
    host_blocks: I32
    blocks: I32
    group: int = 0


class WriteDisk(Operation, kw_only=True):
    """Begin to copy whole blocks of ``tier`` to disk blocks. Transfer ``transfers[i]`` copies block
    ``blocks[i]`` to ``disk_blocks[i]``. If it fails, the block is as it was."""

    transfers: I32
    tier: Literal["device", "host"]
    blocks: I32
    disk_blocks: I32
    group: int = 0


class ReadDisk(Operation, kw_only=True):
    """Begin to copy whole disk blocks to device blocks. The bytes that were read are checked; if a
    transfer fails, neither block holds anything."""

    transfers: I32
    disk_blocks: I32
    blocks: I32
    group: int = 0


class OpenSequence(Operation, kw_only=True):
    """Create decode state. Its first token is sampled after a forward row that names it.

    ``cursor``         where the next token is appended: entry * page_size + offset in ``table``.
    ``limit``          exclusive bound of the cursor; blocks are bound up to it.
    ``position``       position of the next token to append.
    ``history``        tokens so far (prompt, then output), from which penalties, grammar and
                       n-grams are rebuilt.
    ``num_generated``  how many of ``history``'s last tokens were sampled (after a preemption).
    ``adapter``        adapter that its tokens are run with, -1 for none.
    """

    sequence: SequenceId
    epoch: int
    table: TableId
    cursor: int
    limit: int
    position: int
    sampler: SamplerSpec
    stop: StopSpec
    grammar: GrammarSpec | None = None
    num_logprobs: int | None = None
    history: I32 = msgspec.field(default_factory=no_i32)
    num_generated: int = 0
    adapter: int = -1


class ExtendSequence(Operation, kw_only=True):
    """Raise a sequence's ``limit`` after pages were appended to its table."""

    sequence: SequenceId
    limit: int


class CloseSequences(Operation, kw_only=True):
    sequences: list[SequenceId]


class OpenReceive(Operation, kw_only=True):
    """Accept K, V and positions of tokens from other engines under number ``lease``, from senders
    that name ``key`` (16 bytes).

    Token i of the lease goes to flat slot ``slots[i]``, each slot named once. The tokens come at
    any time from the end of this message until ``CloseReceives``, in pieces, in any order, from
    several senders.
    """

    lease: int
    key: bytes
    slots: I32
    group: int = 0


class CloseReceives(Operation, kw_only=True):
    """Stop accepting tokens. Once this operation has run, nothing more is written under these
    leases; those that are unknown or have ended are ignored."""

    leases: list[int]


class SendSlots(Operation, kw_only=True):
    """Begin to send K, V and positions of T tokens to ``target``, as they are after the preceding
    operations and the forward of this message.

    ``slots`` [T] flat slot on the device, -1 for a token on the host · ``host_slots`` [T] or empty:
    flat slot in the host blocks, read where ``slots`` is -1.
    """

    send: int
    slots: I32
    target: SendTarget
    host_slots: I32 = msgspec.field(default_factory=no_i32)
    group: int = 0


BatchOperation = (
    WriteTable
    | WriteEntries
    | DropTables
    | CopySlots
    | RepositionSlots
    | SwapOut
    | SwapIn
    | WriteDisk
    | ReadDisk
    | OpenSequence
    | ExtendSequence
    | CloseSequences
    | OpenReceive
    | CloseReceives
    | SendSlots
)


class EmbedRows(msgspec.Struct, kw_only=True):
    """Stage 2. ``embeds[i]`` receives the embedding of ``tokens[i]``. All of length E."""

    tokens: I32
    embeds: I32


class ImageRow(msgspec.Struct, kw_only=True):
    """Stage 2. ``embeds`` [E] receive the embeddings of the image file ``file`` (bytes)."""

    file: NDArray[np.uint8]
    embeds: I32


class ExplicitMask(msgspec.Struct, kw_only=True):
    """The mask of one forward row: ``bits`` is np.packbits of bool [num_new, num_columns].

    Columns: every slot of the row's table in entry order, then the row's new tokens.
    """

    row: int
    num_columns: int
    bits: NDArray[np.uint8]


class ForwardRows(msgspec.Struct, kw_only=True):
    """Stage 3, ragged: row r owns tokens ``row_starts[r]:row_starts[r + 1]``.

    ``row_starts`` [R+1] · ``tables`` [R] table to attend to, -1 for none · ``sequences`` [R]
    sequence to sample after the row's last token, -1 for none · ``tokens`` [T] token values, read
    where ``embeds`` is -1 · ``embeds`` [T] input embed slot or -1 · ``positions`` [A, T] ·
    ``slots`` [G, T] flat slot written, -1 for none · ``outputs`` [T] embed slot for the final
    hidden state (after the last norm), -1 for none · ``score_targets`` [T] or empty: a token id
    whose log probability after this token is wanted, -1 for none; ``num_scores`` alternatives with
    them · ``adapters`` [R] or empty: adapter that the row is run with, -1 for none ·
    ``attention_rows`` rows whose attention mass is wanted, ascending.
    """

    row_starts: I32
    tables: I32
    sequences: I32
    tokens: I32
    embeds: I32
    positions: I32
    slots: I32
    outputs: I32
    score_targets: I32 = msgspec.field(default_factory=no_i32)
    num_scores: int = 0
    masks: list[ExplicitMask] = msgspec.field(default_factory=list)
    adapters: I32 = msgspec.field(default_factory=no_i32)
    attention_rows: I32 = msgspec.field(default_factory=no_i32)


class DistRows(msgspec.Struct, kw_only=True):
    """Distributions over the vocabulary after embed slots, the best ``top_k`` tokens of each.
    [D]"""

    embeds: I32
    top_k: I32


class SampleRows(msgspec.Struct, kw_only=True):
    """Tokens sampled after embed slots. Row i uses ``samplers[sampler_index[i]]``. [M]

    ``token_slots[i]`` (or -1) keeps the token on the device; ``histories`` is empty or per sampler.
    """

    embeds: I32
    sampler_index: I32
    samplers: list[SamplerSpec]
    positions: I32
    token_slots: I32
    histories: list[I32] = msgspec.field(default_factory=list)


class AdvanceRows(msgspec.Struct, kw_only=True):
    """Stage 5: sequences to advance, each by at most ``max_steps`` tokens in this message. [S]

    A sequence that has ended, or whose epoch is not ``epochs[i]``, is skipped.
    """

    sequences: I32
    epochs: I32
    max_steps: I32


class Batch(msgspec.Struct, kw_only=True, tag=True):
    """One batch message. ``serial`` counts up by one per engine life."""

    serial: int
    num_steps: int = 1
    operations: list[BatchOperation] = msgspec.field(default_factory=list)
    embeds: EmbedRows | None = None
    images: list[ImageRow] = msgspec.field(default_factory=list)
    forward: ForwardRows | None = None
    dists: DistRows | None = None
    samples: SampleRows | None = None
    advance: AdvanceRows | None = None
