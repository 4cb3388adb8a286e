"""The microserving calls of one application: the program that each runs on the node, and its
answer.

Owns the checks on addresses of leases, and the translation of a request's fields into a program of
the node. Must not know routes.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

import msgspec
from starlette.requests import Request

from quire.control import prompt_keys, root_key
from quire.core.errors import InvalidArgument, UnknownHandle
from quire.core.interfaces import ServedModel
from quire.core.lease_commands import Leased, LeaseName, Sent
from quire.node import Node
from quire.programs.builtin import CompletionRequest
from quire.programs.builtin.exchange import (
    LeaseRequest,
    PrepareRequest,
    SendRequest,
    change_lease,
    pin,
    prepare_receive,
    remote_send,
)
from quire.programs.builtin.exchange import PinRequest as PinnedPrefix
from quire.server.chat.tokens import prompt_of, tokens_of
from quire.server.context import caller_of, context_of
from quire.server.microserving.addresses import KvAddress, KvAddresses
from quire.server.microserving.calls import Caller, result_of
from quire.server.microserving.live_index import SHORT_KEY_BYTES, packed
from quire.server.microserving.once import OnceByRequest
from quire.server.microserving.prompts import (
    ExchangePrompt,
    adapter_of,
    prompt_tokens,
    with_images,
)
from quire.server.planning import room_for
from quire.server.requests.identity import priority_of
from quire.server.schemas.generation import IdentityFields
from quire.server.schemas.microserving import (
    CallPromptFields,
    PinAnswer,
    PinRequest,
    PrepRecvAnswer,
    PrepRecvRequest,
    PromptPages,
    PromptPagesRequest,
    Rank,
    RemoteSendAnswer,
    RemoteSendRequest,
    RenewAnswer,
    StartGenerateRequest,
)


def exchanges_of(request: Request) -> Exchanges:
    """Return the exchanges of the request's application. Raises ``Unauthorized`` or ``Forbidden``
    unless the request comes from the cluster."""
    context = context_of(request)
    context.addresses.check_sender(request.headers)
    return Exchanges(context.node, context.addresses, context.once)


@dataclass(frozen=True, slots=True)
class Exchanges:
    """The microserving calls of one application."""

    node: Node
    addresses: KvAddresses
    once: OnceByRequest

    async def prep_recv(self, request: Request, body: PrepRecvRequest) -> PrepRecvAnswer:
        """Hold what the prefix cache has of ``prompt[:end]``, and make room for the rest."""
        model = self.node.model(body.model)
        prompt = await _prompt_of(request, model, body)
        end = prompt.place(body.end, "end")
        caller = Caller(request, body, model, end, watches=body.request_id is None)
        return await self.once.do(
            caller_of(request),
            "prep_recv",
            body.request_id,
            prompt.digest(end) + _salt(body) + b"%d" % round(body.ttl_s * 1000),
            lambda: self._prepare(caller, prompt, end, body),
        )

    async def _prepare(
        self, caller: Caller, prompt: ExchangePrompt, end: int, body: PrepRecvRequest
    ) -> PrepRecvAnswer:
        addresses, model = self.addresses, caller.model
        nonce = addresses.new_nonce()
        asked = PrepareRequest(
            model=model.id,
            tokens=prompt.tokens[:end],
            num_known=prompt.num_known(end) if body.cache_salt is None else 0,
            key=addresses.lease_key(nonce),
            ttl_s=body.ttl_s,
            priority=priority_of(body),
        )
        leased: Leased = await result_of(caller, prepare_receive, asked)
        address = KvAddress(
            tenant=caller_of(caller.request),
            model=model.id,
            engine=leased.lease.engine,
            epoch=leased.lease.epoch,
            lease=leased.lease.number,
            nonce=nonce,
            data_address=leased.address,
            content=leased.content,
            adapter=adapter_of(model),
            begin=leased.num_matched,
            end=end,
            tokens=prompt.digest(end),
            expires_unix_s=addresses.unix_s() + body.ttl_s,
        )
        return PrepRecvAnswer(
            kv_addr_info=addresses.seal(address),
            matched_len=leased.num_matched,
            num_tokens=end - leased.num_matched,
            end=end,
            expires_in_s=body.ttl_s,
            rank=Rank(engine=address.engine, epoch=address.epoch),
        )

    async def remote_send(self, request: Request, body: RemoteSendRequest) -> RemoteSendAnswer:
        """Compute what this node lacks of ``prompt[:end]``, and send ``prompt[begin:end]``."""
        model = self.node.model(body.model)
        prompt = await _prompt_of(request, model, body)
        begin, end = prompt.place(body.begin, "begin"), prompt.place(body.end, "end")
        if begin > end:
            raise InvalidArgument(
                f"begin is {begin} and end is {end}: choose begin <= end", param="begin"
            )
        address = self.addresses.open(body.kv_addr_info, caller_of(request))
        self._check_send(model, prompt, end, address, body.recv_rank)
        asked = SendRequest(
            model=model.id,
            prompt=prompt.tokens,
            images=tuple(one for one in prompt.images if one.start < end),
            begin=max(begin, address.begin),
            end=end,
            lease_begin=address.begin,
            target=self.addresses.target(address),
            content=address.content,
            priority=priority_of(body),
            cache=body.cache_salt is None,
        )
        if asked.begin >= end:  # the receiver has everything already
            return RemoteSendAnswer(num_tokens=0, num_bytes=0, elapsed_s=0.0, transport="")
        caller = Caller(
            request,
            body,
            model,
            end,
            limit_s=address.expires_unix_s - self.addresses.unix_s(),
            watches=body.request_id is None,
        )
        sent: Sent = await self.once.do(
            caller_of(request),
            "remote_send",
            body.request_id,
            prompt.digest(end)
            + _salt(body)
            + b"%d" % begin
            + self.addresses.identity(body.kv_addr_info),
            lambda: result_of(caller, remote_send, asked),
        )
        return RemoteSendAnswer(
            num_tokens=sent.num_tokens,
            num_bytes=sent.num_bytes,
            elapsed_s=sent.elapsed_s,
            transport=sent.transport,
        )

    def _check_send(
        self,
        model: ServedModel,
        prompt: ExchangePrompt,
        end: int,
        address: KvAddress,
        rank: Rank | None,
    ) -> None:
        """Raise ``InvalidArgument`` or ``UnknownHandle`` if the lease does not wait for these
        tokens."""
        if rank is not None and (rank.engine, rank.epoch) != (address.engine, address.epoch):
            raise UnknownHandle(
                f"recv_rank names engine {rank.engine} (epoch {rank.epoch}), the lease is of "
                f"{address.engine} (epoch {address.epoch}): call prep_recv again",
                param="recv_rank",
            )
        if end > address.end:
            raise InvalidArgument(
                f"end is {end}, and the lease is for tokens {address.begin} to {address.end}: "
                "lease more, or send less",
                param="end",
            )
        if len(prompt.tokens) < address.end or prompt.digest(address.end) != address.tokens:
            raise InvalidArgument(
                f"the prompt is not the one that the lease waits for, of which it has the first "
                f"{address.end} tokens: send the prompt that prep_recv was called with",
                param="prompt",
            )
        _check_same(model, address)

    def take(self, request: Request, body: StartGenerateRequest) -> _Taking:
        """Return the lease that ``start_generate`` takes over: none, if it names none."""
        if body.kv_addr_info is None:
            return _Taking(self.addresses, None, body, self.node.model(body.model))
        address = self.addresses.open(body.kv_addr_info, caller_of(request))
        model = self.node.model(body.model)
        _check_same(model, address)
        return _Taking(self.addresses, address, body, model)

    async def renew(self, request: Request, kv_addr_info: str, ttl_s: float) -> RenewAnswer:
        address = self._opened(request, kv_addr_info)
        await self._change(request, address, ttl_s)
        renewed = msgspec.structs.replace(address, expires_unix_s=self.addresses.unix_s() + ttl_s)
        return RenewAnswer(kv_addr_info=self.addresses.seal(renewed), expires_in_s=ttl_s)

    async def cancel(self, request: Request, kv_addr_info: str, *, when_arrived: bool) -> None:
        address = self._opened(request, kv_addr_info)
        await self._change(request, address, None, when_arrived=when_arrived)

    async def pin(self, request: Request, body: PinRequest) -> PinAnswer:
        """Have what is cached of the prompt evicted later than the rest."""
        model = self.node.model(body.model)
        tokens = await prompt_tokens(model, body.prompt, body.add_special_tokens)
        asked = PinnedPrefix(model.id, tokens, body.price, body.ttl_s, priority_of(body))
        pinned = await result_of(Caller(request, body, model, len(tokens)), pin, asked)
        return PinAnswer(num_tokens=pinned.num_tokens, expires_in_s=body.ttl_s)

    async def pages(self, request: Request, body: PromptPagesRequest) -> PromptPages:
        """Return the tokens of a prompt of the caller's tenant, and the keys of its pages."""
        model = self.node.model(body.model)
        if body.messages is None:
            assert body.prompt is not None
            tokens = await prompt_tokens(model, body.prompt, body.add_special_tokens)
        else:
            tokens = await tokens_of(context_of(request).renderer, model, body)
        info, known = model.info, tokens
        if info.images is not None and info.images.token in tokens:  # images have no keys
            known = tokens[: tokens.index(info.images.token)]
        root = root_key(info.content, caller_of(request), adapter_of(model))
        page_size = info.pool.page_size
        keys = await asyncio.to_thread(prompt_keys, root, page_size, known)
        return PromptPages(
            tokens=list(tokens),
            content=info.content,
            page_size=page_size,
            keys=packed(key[:SHORT_KEY_BYTES] for key in keys),
        )

    def _opened(self, request: Request, kv_addr_info: str) -> KvAddress:
        return self.addresses.open(kv_addr_info, caller_of(request))

    async def _change(
        self,
        request: Request,
        address: KvAddress,
        ttl_s: float | None,
        *,
        when_arrived: bool = False,
    ) -> None:
        model = self.node.model(address.model)
        caller = Caller(request, IdentityFields.model_construct(), model, 0)
        asked = LeaseRequest(model.id, self.addresses.lease(address), ttl_s, when_arrived)
        await result_of(caller, change_lease, asked)


@dataclass(frozen=True, slots=True)
class _Taking:
    addresses: KvAddresses
    address: KvAddress | None
    body: StartGenerateRequest
    model: ServedModel

    def into(self, asked: CompletionRequest) -> CompletionRequest:
        """Return ``asked`` with its images, and with the lease that has its prompt's first tokens.

        Raises:
            InvalidArgument: ``begin`` is outside the prompt or the lease, or the lease is for
                another prompt.
        """
        prompt = with_images(self.model, asked.prompt, self.body.images)
        if prompt.images:
            room_for(self.model, len(prompt.tokens), self.body.max_tokens, 0)
            asked = replace(asked, prompt=prompt.tokens, images=prompt.images)
        begin = prompt.place(self.body.begin, "begin")
        address = self.address
        if address is None:
            return asked
        if begin > address.end:
            raise InvalidArgument(
                f"begin is {begin}, and the lease is for the first {address.end} tokens: compute "
                "the rest here, from there on",
                param="begin",
            )
        end = address.end
        if len(prompt.tokens) < end or prompt.digest(end) != address.tokens:
            raise InvalidArgument(
                f"the prompt does not begin with the {end} tokens that the lease holds: send the "
                "prompt that prep_recv was called with, and what follows it",
                param="prompt",
            )
        lease: LeaseName = self.addresses.lease(address)
        return replace(asked, lease=lease, num_leased=min(begin, len(asked.prompt) - 1))


def _salt(body: IdentityFields) -> bytes:
    """Return what tells requests that use the prefix cache from those that do not."""
    return b"" if body.cache_salt is None else b"salted"


async def _prompt_of(
    request: Request, model: ServedModel, body: CallPromptFields
) -> ExchangePrompt:
    if body.messages is not None:
        chat = await prompt_of(context_of(request).renderer, model, body)
        model.room_behind(len(chat.token_ids), least=0)
        return ExchangePrompt(chat.token_ids, chat.images)
    assert body.prompt is not None
    tokens = await prompt_tokens(model, body.prompt, body.add_special_tokens)
    return await asyncio.to_thread(with_images, model, tokens, body.images)


def _check_same(model: ServedModel, address: KvAddress) -> None:
    if model.info.content != address.content:
        raise InvalidArgument(
            f"the lease is for K and V {address.content!r}, and model {model.id!r} computes "
            f"{model.info.content!r} here: name the same model, in the same form",
            param="model",
        )
    adapter = adapter_of(model)
    if adapter != address.adapter:
        raise InvalidArgument(
            f"the lease is for adapter {address.adapter}, and model {model.id!r} runs with "
            f"{adapter}: name the same model",
            param="model",
        )
