"""The completion program: one prompt, one or several continuations, as chunks of text and tokens.

Executes the HTTP completion requests. Owns its queues and pages from the first command to the end,
however it ends. The prompt of several choices is computed once: its full pages are shared, and each
choice runs the rest on its own pages.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass

import msgspec

from quire.core.decoding import DecodeChunk, StopSpec, TokenLogprobs
from quire.core.errors import QueuePoisoned, QuireError
from quire.core.lease_commands import LeaseName
from quire.programs.api import Api, DecodeStream, KvPage, Model, Queue
from quire.programs.api.reply import CommandFuture
from quire.programs.builtin.choice import Choice
from quire.programs.builtin.leases import take_lease
from quire.programs.builtin.merge import merge
from quire.programs.builtin.requests import ChoiceChunk, CompletionRequest
from quire.programs.builtin.seeing import see_image


def complete(
    api: Api, request: CompletionRequest, *, thread: int = 0
) -> AsyncGenerator[ChoiceChunk, None]:
    """Run ``request`` as part of ``api``'s program; yields chunks of all choices as they arrive.

    Every choice ends with one chunk that has a ``finish_reason``. Closing the generator
    (``aclose``), or cancelling the task that iterates over it, cancels what is running and frees
    everything.

    Raises:
        PromptTooLong: the prompt fills the model's context.
        QuireError: the error that ended a decode; no further chunk follows.
    """
    return _Completion(api, request, thread).chunks()


@dataclass(slots=True)
class _Shared:
    """The part of the prompt that all choices share: full pages, or the prompt up to its last
    image. ``tail``: a page that is filled in part, which the only choice continues."""

    pages: list[KvPage]
    num_tokens: int
    computed: CommandFuture
    prompt_logprobs: tuple[TokenLogprobs, ...] | None
    num_cached_tokens: int
    tail: KvPage | None = None


@dataclass(frozen=True, slots=True)
class _Running:
    """One running choice."""

    text: Choice
    queue: Queue
    stream: DecodeStream


class _Completion:
    def __init__(self, api: Api, request: CompletionRequest, thread: int) -> None:
        self._api = api
        self._request = request
        self._thread = thread
        self._model = self._find_model()
        self._max_tokens = self._room()
        self._queues: list[Queue] = []

    def _find_model(self) -> Model:
        issuer = self._api.issuer
        return Model(issuer, issuer.model(self._request.model))

    def _room(self) -> int:
        """Tokens that may be sampled. The last one is not run, so it needs no position."""
        asked = self._request.max_tokens
        room = self._model.served.room_behind(len(self._request.prompt), least=min(asked, 1))
        return min(asked, room)

    async def chunks(self) -> AsyncGenerator[ChoiceChunk, None]:
        try:
            running = await self._start()
            if len(running) == 1:
                async for chunk in running[0].stream:
                    yield self._told(running[0], chunk)
            else:
                async for index, chunk in merge([one.stream for one in running]):
                    yield self._told(running[index], chunk)
        except QueuePoisoned as exc:
            # report why the first command failed, as a quota that may be free again soon
            if isinstance(exc.__cause__, QuireError):
                raise exc.__cause__ from None
            raise
        finally:
            for queue in self._queues:
                self._api.close_queue(queue)

    def _told(self, choice: _Running, chunk: DecodeChunk) -> ChoiceChunk:
        if chunk.finish_reason is not None:  # frees pages for which other commands may wait
            self._api.close_queue(choice.queue)
        return choice.text.chunk(chunk)

    async def _start(self) -> list[_Running]:
        """Compute what the choices share, then start each of them."""
        request = self._request
        shared = None
        if request.lease is not None:
            shared = await self._take(request.lease)
        if request.images and request.images[-1].start >= request.num_leased:
            shared = await self._see(shared)
        elif request.lease is not None:
            pass  # the rest is text
        elif request.num_choices > 1:
            shared = await self._share()
        queues = [self._queue() for _ in range(request.num_choices)]
        running = [
            _Running(Choice(index, request, self._model), queue, self._decode(index, queue, shared))
            for index, queue in enumerate(queues)
        ]
        if shared is not None:
            running[0].text.prompt_known(shared.num_cached_tokens, shared.prompt_logprobs)
        return running

    async def _share(self) -> _Shared | None:
        """Compute the prompt's full pages once; ``None`` if it does not fill one.

        One more token is run, because the prefix index never returns the page with the last token
        of a prompt, which would be the last of these pages. With log probabilities of the prompt
        all of it is computed here, because the choices do not compute the shared tokens.
        """
        request, page_size = self._request, self._model.page_size
        num_shared = (len(request.prompt) - 1) // page_size * page_size
        scored = request.num_prompt_logprobs is not None
        if not num_shared and not scored:
            return None
        tokens = request.prompt if scored else request.prompt[: num_shared + 1]
        queue = self._queue()
        pages = self._api.alloc_kvpage(queue, -(-len(tokens) // page_size))
        stream = self._api.decode(
            queue,
            [],
            tokens,
            pages,
            position=0,
            stop=StopSpec(0),
            num_prompt_logprobs=request.num_prompt_logprobs,
            cache=request.cache and not scored,
        )
        done = await stream
        return _Shared(
            pages=pages[: num_shared // page_size],
            num_tokens=num_shared,
            computed=stream,
            prompt_logprobs=tuple(done.prompt_logprobs or ()) if scored else None,
            num_cached_tokens=done.num_cached_tokens,
        )

    async def _take(self, lease: LeaseName) -> _Shared | None:
        """Take over the pages that another engine has sent. A single choice continues a page that
        is filled in part. Several choices each compute its few tokens, or share the page for
        reading if it may contain an image."""
        num_tokens, page_size = self._request.num_leased, self._model.page_size
        queue = self._queue()
        pages, taken = take_lease(self._api, queue, lease, num_tokens)
        await taken
        tail = None
        if num_tokens % page_size:
            tail = pages.pop()
            if self._request.num_choices > 1 and self._request.images:
                pages, tail = [*pages, tail], None
            elif self._request.num_choices > 1:
                num_tokens, tail = len(pages) * page_size, None
        if not num_tokens:
            return None
        return _Shared(pages, num_tokens, taken, None, num_tokens, tail)

    async def _see(self, taken: _Shared | None = None) -> _Shared:
        """Compute the prompt up to its last image, after the part that was ``taken``: text by
        decodes without output tokens, which use the prefix index up to the first image, and images
        by their embeddings."""
        request, api = self._request, self._api
        last = request.images[-1]
        num_shared = last.start + last.num_embeds
        position = num_cached = 0
        if taken is None:
            queue, pages = self._queue(), []
        else:
            queue, position, num_cached = self._queues[0], taken.num_tokens, taken.num_cached_tokens
            pages = [*taken.pages, *([] if taken.tail is None else [taken.tail])]
        num_pages = -(-num_shared // self._model.page_size)
        pages += api.alloc_kvpage(queue, num_pages - len(pages))
        for image in request.images:
            if image.start < position:
                continue
            text = request.prompt[position : image.start]
            if text:
                done = await api.decode(
                    queue, pages, text, pages, position=position, stop=StopSpec(0),
                    cache=request.cache,
                )  # fmt: skip
                num_cached += done.num_cached_tokens
            position = image.start + image.num_embeds
            computed = see_image(api, queue, pages, image)
            await computed
        return _Shared(pages, num_shared, computed, None, num_cached)

    def _queue(self) -> Queue:
        queue = self._api.create_queue(
            self._model, thread=self._thread, priority=self._request.priority
        )
        self._queues.append(queue)
        return queue

    def _decode(self, index: int, queue: Queue, shared: _Shared | None) -> DecodeStream:
        """Start one choice on its queue."""
        request = self._request
        num_shared = shared.num_tokens if shared is not None else 0
        tokens = request.prompt[num_shared:]
        num_slots = len(tokens) + max(self._max_tokens - 1, 0)
        context, pages = ([], []) if shared is None else ([*shared.pages], [])
        if shared is not None and shared.tail is not None:
            context.append(shared.tail)
            pages.append(shared.tail)
            num_slots -= -num_shared % self._model.page_size
        pages += self._api.alloc_kvpage(queue, -(-max(num_slots, 0) // self._model.page_size))
        sampler = request.sampler
        if sampler.seed is not None and index:
            sampler = msgspec.structs.replace(sampler, seed=sampler.seed + index)
        scored = request.num_prompt_logprobs if shared is None else None
        return self._api.decode(
            queue.after(shared.computed) if shared is not None else queue,
            context,
            tokens,
            pages,
            position=num_shared,
            sampler=sampler,
            stop=self._stop(),
            grammar=request.grammar,
            num_logprobs=request.num_logprobs,
            num_prompt_logprobs=scored,
            history=request.prompt[:num_shared] or None,
            cache=request.cache and scored is None,
            num_generated=request.num_generated,
            stream=request.stream,
        )

    def _stop(self) -> StopSpec:
        request = self._request
        end_tokens = () if request.ignore_eos else self._model.eos_token_ids
        return StopSpec(
            max_tokens=self._max_tokens,
            min_tokens=min(request.min_tokens, self._max_tokens),
            token_ids=tuple(dict.fromkeys((*end_tokens, *request.stop_token_ids))),
            strings=tuple(text.encode() for text in request.stop),
        )
