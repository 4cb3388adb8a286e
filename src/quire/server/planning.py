"""Turns validated request fields into ``CompletionRequest``s, and starts their generation.

Owns the limits that depend on the model: context length, vocabulary, number of choices. Contains
what chat and completions have in common; the rest is in their routes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from starlette.requests import Request

from quire.core.decoding import GrammarSpec, SamplerSpec
from quire.core.errors import InvalidArgument, PromptTooLong
from quire.core.events import LAST_CALL
from quire.core.interfaces import ServedModel
from quire.node import ConversationTurn, SessionHandle
from quire.programs.builtin import CompletionRequest, PromptImage
from quire.server.answers.delivery import Formatter, GenerationResponse
from quire.server.answers.generation import GenerationStream
from quire.server.answers.resuming.going_on import ResumableAnswer, telling_of
from quire.server.answers.resuming.told_tokens import TELLS_HEADER
from quire.server.context import ServerContext, caller_of, context_of, request_id_of
from quire.server.errors.refusals import mark_begun
from quire.server.events import DATA_EVENTS, EventStyle
from quire.server.requests.hints import tell_clipped
from quire.server.requests.identity import identify
from quire.server.requests.observation import RequestLabels, RequestObserver
from quire.server.requests.own_quota import check_own_quota
from quire.server.requests.sampling import sampler_of
from quire.server.requests.spent_quota import with_way_on
from quire.server.requests.strict_json import GENERATED_HEADER
from quire.server.schemas.generation import GenerationFields

MAX_CHOICES_IN_ALL = 1024
"""The most choices of all prompts of one request together."""


@dataclass(frozen=True, slots=True)
class Reporting:
    """The numbers of log probabilities that are requested; ``None`` for none."""

    num_logprobs: int | None = None
    num_prompt_logprobs: int | None = None


def completion_request(
    fields: GenerationFields,
    model: ServedModel,
    prompt: Sequence[int],
    max_tokens: int | None,
    *,
    default_max_tokens: int | None,
    sampler: SamplerSpec,
    grammar: GrammarSpec | None,
    reporting: Reporting,
    priority: int,
    images: tuple[PromptImage, ...] = (),
    min_tokens: int | None = None,
    shown_special: frozenset[int] = frozenset(),
) -> CompletionRequest:
    """Return the request for one prompt. ``max_tokens`` is the client's field; without it the
    default applies. ``sampler``: that of ``request_sampler``, which is made once for all prompts:
    the client's words have to be tokenised for it. ``min_tokens`` replaces the client's field.

    Raises:
        PromptTooLong: prompt, or prompt and max_tokens, exceed the model's context.
        InvalidArgument: a token that the model does not have, or contradictory limits.
    """
    vocab_size = model.info.vocab_size
    _check_tokens(prompt, vocab_size, "prompt")
    return CompletionRequest(
        prompt=tuple(prompt),
        max_tokens=room_for(model, len(prompt), max_tokens, default_max_tokens),
        model=model.id,
        num_choices=fields.n or 1,
        sampler=sampler,
        min_tokens=(fields.min_tokens or 0) if min_tokens is None else min_tokens,
        stop=fields.stop_strings(),
        include_stop=bool(fields.include_stop_str_in_output),
        stop_token_ids=_stop_tokens(fields, vocab_size),
        ignore_eos=bool(fields.ignore_eos),
        grammar=grammar,
        num_logprobs=reporting.num_logprobs,
        num_prompt_logprobs=reporting.num_prompt_logprobs,
        skip_special=fields.skip_special_tokens is not False,
        shown_special=shown_special,
        cache=fields.cache_salt is None,
        priority=priority,
        images=images,
    )


def request_sampler(fields: GenerationFields, model: ServedModel) -> SamplerSpec:
    """Return the sampler of a request, for all of its prompts. Raises ``InvalidArgument`` for a
    token that the model does not have."""
    return sampler_of(fields, model.defaults, model.info.vocab_size, model.tokenizer)


def _stop_tokens(fields: GenerationFields, vocab_size: int) -> tuple[int, ...]:
    token_ids = tuple(fields.stop_token_ids or ())
    _check_tokens(token_ids, vocab_size, "stop_token_ids")
    return token_ids


def _check_tokens(token_ids: Sequence[int], vocab_size: int, param: str) -> None:
    highest = max(token_ids, default=0)
    if highest >= vocab_size:
        raise InvalidArgument(
            f"{param} has token {highest}, but the model has {vocab_size} tokens", param=param
        )


def room_for(model: ServedModel, num_prompt: int, asked: int | None, default: int | None) -> int:
    """Return how many tokens may be generated; the prompt is never truncated to fit.

    Raises:
        PromptTooLong: the prompt, or the prompt and ``asked``, exceed the model's context, or the
            whole pool.
    """
    room = model.room_behind(num_prompt, least=0 if asked == 0 else 1)
    if asked is None:
        return room if default is None else min(default, room)
    if asked > room:
        raise PromptTooLong(
            f"the prompt has {num_prompt} tokens and max_tokens asks for {asked} more, but the "
            f"context of {model.id!r} holds {model.max_tokens}: lower max_tokens to {room} or "
            "shorten the prompt",
            num_prompt_tokens=num_prompt,
            max_model_len=model.max_tokens,
        )
    return asked


def num_kept_tokens(model: ServedModel, asked: int | None, max_tokens: int) -> int | None:
    """Return to how many tokens at its end a prompt is cut; None: it is not. ``asked``: the
    client's ``truncate_prompt_tokens``, where -1 leaves room for ``max_tokens``."""
    return max(1, model.max_tokens - max(1, max_tokens)) if asked == -1 else asked


def check_num_choices(num_prompts: int, num_choices: int) -> None:
    """Raise ``InvalidArgument`` for more choices than one request may have."""
    if num_prompts * num_choices > MAX_CHOICES_IN_ALL:
        raise InvalidArgument(
            f"{num_prompts} prompts with n = {num_choices} are {num_prompts * num_choices} "
            f"choices, at most {MAX_CHOICES_IN_ALL} are served in one request: send several",
            param="n",
        )


@dataclass(frozen=True, slots=True)
class GenerationPlan:
    """The decisions of a route, which ``begin`` carries out.

    ``turns``: the conversation so far, from which the session is inferred. ``on_finished`` is
    called with the session after a complete answer. ``style``: how events are framed. ``telling``:
    given if the answer may go on at another node.
    """

    fields: GenerationFields
    model: ServedModel
    requests: Sequence[CompletionRequest]
    formatter: Formatter
    turns: Sequence[ConversationTurn] = ()
    on_finished: Callable[[SessionHandle], None] | None = None
    style: EventStyle = DATA_EVENTS
    telling: ResumableAnswer | None = None

    def then(self, on_finished: Callable[[SessionHandle], None]) -> GenerationPlan:
        """Return the same plan with another ``on_finished``."""
        return replace(self, on_finished=on_finished)


@dataclass(frozen=True, slots=True)
class BegunGeneration:
    """A generation that starts when it is iterated. Call ``finished`` after a complete answer."""

    generation: GenerationStream
    observer: RequestObserver
    finished: Callable[[], None]


def begin(request: Request, plan: GenerationPlan) -> GenerationResponse:
    """Open the session and create the response that will run the generation.

    Raises:
        Draining, QuotaExceeded, NeverWithinQuota: see ``open_generation``.
    """
    plan = _told(plan)
    if not plan.fields.stream and plan.telling is None:  # only the whole is sent
        plan = replace(plan, requests=[replace(one, stream=False) for one in plan.requests])
    begun = open_generation(request, plan)
    headers = {"x-quire-program-id": begun.generation.session.id}
    if plan.telling is not None:
        headers[TELLS_HEADER] = "1"
    response = GenerationResponse(
        begun.generation,
        plan.formatter,
        begun.observer,
        stream=bool(plan.fields.stream),
        write_timeout_s=context_of(request).config.write_timeout_s,
        on_finished=begun.finished,
        headers=headers,
        style=plan.style,
        telling=plan.telling,
    )
    tell_clipped(response, plan.fields)
    return response


def told_stream(request: Request, model: ServedModel) -> ResumableAnswer | None:
    """Return the answer that a router of the cluster may continue at another node, as ``request``
    asks; None if it does not.

    Raises:
        Unauthorized, Forbidden: the request does not come from the cluster.
        InvalidArgument: what was generated before cannot be read.
    """
    if TELLS_HEADER in request.headers or GENERATED_HEADER in request.headers:
        context_of(request).addresses.check_sender(request.headers)
    return telling_of(request, model)


def _told(plan: GenerationPlan) -> GenerationPlan:
    """Return ``plan`` as it continues after what another node has sampled of it."""
    telling, asked = plan.telling, plan.requests
    if telling is None:
        return plan
    if (seed := asked[0].sampler.seed) is not None:
        telling = replace(telling, seed=seed)
    if len(asked) == 1 and not asked[0].images:
        telling = replace(telling, prompt=tuple(asked[0].prompt))
    telling, requests = telling.continued(asked)
    for item in telling.before(asked, plan.model):
        plan.formatter.feed(item)  # the client has received its events
    return replace(plan, requests=requests, telling=telling)


def open_generation(request: Request, plan: GenerationPlan) -> BegunGeneration:
    """Open the session that ``plan`` belongs to; nothing runs yet.

    Raises:
        Draining, QuotaExceeded: see ``Node.session``.
        NeverWithinQuota: the request's choices together exceed a quota of the session.
    """
    context: ServerContext = context_of(request)
    identity = identify(request.headers, plan.fields)
    session = context.node.session(
        caller_of(request),
        identity.client_id,
        turns=plan.turns,
        parent=identity.parent,
        traceparent=request.headers.get("traceparent"),
    )
    check_own_quota(session.start.quotas, plan.requests, plan.model.info.pool.page_size)
    route = request.scope["path"]
    labels = RequestLabels(
        request_id=request_id_of(request),
        route=route,
        tenant=caller_of(request),
        model=plan.model.id,
        session=session.id,
        identity=identity,
        stream=bool(plan.fields.stream),
        num_prompt_tokens=sum(len(one.prompt) for one in plan.requests),
    )

    def finished() -> None:
        if plan.on_finished is not None:
            plan.on_finished(session)
        if identity.final:
            session.end(LAST_CALL)

    mark_begun(request.scope)
    generation = GenerationStream(
        session,
        plan.requests,
        thread=identity.thread,
        parent_thread=identity.parent_thread,
        name=route,
        traceparent=request.headers.get("traceparent"),
        explained=with_way_on,
    )
    return BegunGeneration(generation, RequestObserver(labels, context.metrics.requests), finished)
