"""The identifiers that cross layers, and the form of a program. Each identifier is a ``NewType``:
free at run time, checked by mypy.

Issuers choose the ids of what they create (commands, queues, pages, embeds), so that creating a
thing never needs a round trip. Such ids are unique within one program; everything else is unique
within one node.
"""

from __future__ import annotations

from typing import Literal, NewType

TenantId = NewType("TenantId", str)
"""The unit of billing and isolation: an API key maps to exactly one tenant."""

ProgramId = NewType("ProgramId", int)
"""One entry of the process table, of any form. Never reused."""

ProgramForm = Literal["session", "inferlet", "workflow"]
"""What a program is: the calls of one client, a coroutine beside the engine, or a graph's query."""

ThreadId = NewType("ThreadId", int)
"""One line of calls within a program (Autellix 4.1). Chosen by the issuer."""

QueueId = NewType("QueueId", int)
"""A command queue; chosen by the issuer, unique within its program."""

CommandId = NewType("CommandId", int)
"""A command on a queue; chosen by the issuer, unique within its program, never reused."""

PageId = NewType("PageId", int)
"""A *virtual* page of KV cache that a program holds; chosen by the issuer, never reused."""

EmbedId = NewType("EmbedId", int)
"""A virtual embedding slot that a program holds; chosen by the issuer, never reused."""

TokenSlotId = NewType("TokenSlotId", int)
"""A virtual slot for one sampled token, which a later command may name before the host has seen
it."""

EngineId = NewType("EngineId", str)
"""One engine: one model on one device or tensor-parallel group."""

ModelId = NewType("ModelId", str)
"""The name under which a model is served."""

BlockId = NewType("BlockId", int)
"""A *physical* block of device memory, ``page_size`` slots of every layer."""

HostBlockId = NewType("HostBlockId", int)
"""A physical block of the host tier."""

DiskBlockId = NewType("DiskBlockId", int)
"""A physical block of the disk tier."""

TableId = NewType("TableId", int)
"""A page table that is resident in an engine. Chosen by control."""

SequenceId = NewType("SequenceId", int)
"""A row of the engine's decode state. Chosen by control and reused under a new epoch."""
