"""A model behind HTTP: each call is one request in the form of OpenAI's chat completions.

Owns the requests of one query: their bounds in time and size, and their retries. A prompt is sent
whole and the endpoint answers it, so nothing is prefilled or passed on early.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import httpx

from quire.core.errors import EngineFault, InvalidArgument
from quire.programs.services.server_sent_events import EventParser
from quire.programs.workflow.engines.endpoint import Endpoint
from quire.programs.workflow.execution.answer_text import FinalAnswerText, SaidText, behind
from quire.programs.workflow.graphs.primitives import Primitive
from quire.programs.workflow.graphs.values import ValueType
from quire.programs.workflow.runners.calls import StreamedAnswers, prompt_text, tell
from quire.programs.workflow.sharing import Sharing

MAX_ANSWER_BYTES = 8 << 20
"""The most bytes of one answer, as received."""
MAX_REQUESTS = 32
"""The most requests of one query to one engine at a time."""
CONNECT_S = 10.0
PAUSES_S = (0.5, 2.0, 5.0)
"""The pauses before retries; the last one is for all further tries."""
MAX_PAUSE_S = 30.0
"""The longest pause that an endpoint may ask for with Retry-After."""
_AGAIN = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})


class _TryAgain(Exception):
    """A request has failed and may be made again. ``pause_s``: the pause that the endpoint asks
    for."""

    def __init__(self, text: str, pause_s: float | None = None) -> None:
        super().__init__(text)
        self.pause_s = pause_s


class RemoteRunner:
    """``PrimitiveRunner`` of an engine of kind llm with an endpoint. ``key``: the key to send, if
    any. ``transport``: None for the network."""

    def __init__(
        self,
        endpoint: Endpoint,
        streamed: StreamedAnswers | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        sharing: Sharing | None = None,
        key: str | None = None,
    ) -> None:
        self._sharing = sharing
        self._endpoint, self._streamed, self._sleep = endpoint, streamed, sleep
        self._slots = asyncio.Semaphore(MAX_REQUESTS)
        self._client = httpx.AsyncClient(
            headers={"accept-encoding": "identity"}
            | ({} if key is None else {"authorization": f"Bearer {key}"}),
            timeout=httpx.Timeout(endpoint.timeout_s, connect=min(CONNECT_S, endpoint.timeout_s)),
            limits=httpx.Limits(max_connections=MAX_REQUESTS),
            transport=transport,
            trust_env=False,
        )

    async def run(self, primitive: Primitive, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        config = primitive.config
        body = _body(self._endpoint, primitive, prompt_text(primitive, inputs))
        answer, finish_reason = await self._once(primitive, body)
        if config["schema"] is not None:
            return {"out": _elements(answer, finish_reason, config)}
        said = behind(config["answer_after"], answer)
        return {"out": [said] if primitive.outputs["out"] is ValueType.TEXTS else said}

    async def close(self) -> None:
        await self._client.aclose()

    async def _once(self, primitive: Primitive, body: Mapping[str, Any]) -> tuple[str, str]:
        """As ``_answered``, but share the answer of an equal request if it does not depend on
        chance."""
        if self._sharing is None or not (body.get("temperature") == 0 or "seed" in body):
            return await self._answered(primitive, body)
        depends = ["request", self._endpoint.base_url, self._endpoint.api_key_env, dict(body)]

        async def asked() -> list[str]:
            return list(await self._answered(primitive, body))

        answer, finish_reason = await self._sharing.once(primitive, depends, asked)
        if primitive.id in self._sharing.how and self._streamed is not None:
            output = self._streamed.outputs.get(primitive.id)
            if output is not None:
                said = SaidText(behind(primitive.config["answer_after"], answer))
                await self._streamed.watcher.said(output, said)
        return answer, finish_reason

    async def _answered(self, primitive: Primitive, body: Mapping[str, Any]) -> tuple[str, str]:
        """Return the text of the answer, and why it ended."""
        output = None if self._streamed is None else self._streamed.outputs.get(primitive.id)
        num_tries = self._endpoint.retries + 1
        for number in range(num_tries):
            text = FinalAnswerText(primitive.config["answer_after"], begins_again=number > 0)
            told = None if output is None else (output, text)
            try:
                async with self._slots, asyncio.timeout(self._endpoint.timeout_s):
                    return await self._asked(body, told)
            except TimeoutError:
                failed = _TryAgain(f"no whole answer within {self._endpoint.timeout_s:g} s")
            except httpx.RequestError as exc:
                failed = _TryAgain(f"{type(exc).__name__}: {exc}".rstrip(": "))
            except _TryAgain as exc:
                failed = exc
            if number + 1 < num_tries:
                pause_s = PAUSES_S[min(number, len(PAUSES_S) - 1)]
                await self._sleep(failed.pause_s or pause_s)
        tries = "once" if num_tries == 1 else f"{num_tries} times"
        raise EngineFault(
            f"{self._endpoint.base_url} was asked {tries} for {self._endpoint.model} and gave no "
            f"answer: {failed}: see whether it runs, or raise timeout_s or retries of the engine"
        )

    async def _asked(
        self, body: Mapping[str, Any], told: tuple[str, FinalAnswerText] | None
    ) -> tuple[str, str]:
        url = f"{self._endpoint.base_url.rstrip('/')}/chat/completions"
        sent = {**body, "stream": True} if told is not None else body
        async with self._client.stream("POST", url, json=sent) as response:
            if response.status_code in _AGAIN:
                raise _TryAgain(await _refusal(response), _pause_s(response))
            if response.status_code != 200:
                raise EngineFault(f"{url}: {await _refusal(response)}")
            if told is None:
                return _choice(_object(await _content(response)), "message")
            return await self._read_stream(response, *told)

    async def _read_stream(
        self, response: httpx.Response, output: str, text: FinalAnswerText
    ) -> tuple[str, str]:
        assert self._streamed is not None, "only a watched answer is streamed"
        parser, pieces, num_bytes, reason = EventParser(), list[str](), 0, ""
        async for content in response.aiter_bytes():
            num_bytes += len(content)
            if num_bytes > MAX_ANSWER_BYTES:
                raise _too_large()
            for event in parser.feed(content):
                if event.data == "[DONE]":
                    await tell(self._streamed.watcher, output, text.end())
                    return "".join(pieces), reason
                found = _object(event.data.encode())
                if "error" in found:
                    raise _TryAgain(f"it broke off: {found['error']!r:.300}")
                if not found.get("choices"):
                    continue  # counts of tokens
                piece, ended = _choice(found, "delta")
                reason = ended or reason
                pieces.append(piece)
                await tell(self._streamed.watcher, output, text.feed(piece))
        raise _TryAgain("the stream ended before the answer did")


def _body(endpoint: Endpoint, primitive: Primitive, prompt: str) -> dict[str, Any]:
    config = primitive.config
    messages = [{"role": "user", "content": prompt}]
    if config["system"] is not None:
        messages.insert(0, {"role": "system", "content": config["system"]})
    body = {
        "model": endpoint.model,
        "messages": messages,
        "max_tokens": config["max_tokens"],
        "temperature": 0,
        **endpoint.parameters,
    }
    if config["schema"] is not None:
        schema = {  # endpoints ask for an object at the root
            "type": "object",
            "properties": {"elements": config["schema"]},
            "required": ["elements"],
            "additionalProperties": False,
        }
        named = {"name": "elements", "schema": schema, "strict": True}
        body["response_format"] = {"type": "json_schema", "json_schema": named}
    return {key: value for key, value in body.items() if value is not None}


async def _content(response: httpx.Response) -> bytes:
    found = bytearray()
    async for piece in response.aiter_bytes():
        found += piece
        if len(found) > MAX_ANSWER_BYTES:
            raise _too_large()
    return bytes(found)


def _too_large() -> EngineFault:
    return EngineFault(f"an answer has more than {MAX_ANSWER_BYTES} bytes: lower max_tokens")


async def _refusal(response: httpx.Response) -> str:
    """Summarise the endpoint's refusal."""
    text = ""
    async for piece in response.aiter_text(1024):
        text = " ".join(piece.split())[:300]
        break
    return f"status {response.status_code}{f' ({text})' if text else ''}"


def _pause_s(response: httpx.Response) -> float | None:
    """Read Retry-After as seconds; None if it is missing or a date."""
    given = response.headers.get("retry-after", "")
    return min(float(given), MAX_PAUSE_S) if given.isascii() and given.isdigit() else None


def _object(content: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise _not_openai(content.decode("utf-8", "replace"))
    return found


def _choice(found: Mapping[str, Any], part: str) -> tuple[str, str]:
    """Return the text of the first choice, and why it ended."""
    try:
        (choice, *_) = found["choices"]
        text = choice[part].get("content") or ""
        reason = choice.get("finish_reason") or ""
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise _not_openai(str(found)) from exc
    if not isinstance(text, str):
        raise EngineFault(f"the answer is no text: {text!r:.200}")
    return text, str(reason)


def _not_openai(text: str) -> EngineFault:
    return EngineFault(
        f"the answer is none of OpenAI's chat completions: {text[:200]!r}: is base_url right?"
    )


def _elements(answer: str, finish_reason: str, config: Mapping[str, Any]) -> list[Any]:
    schema: Mapping[str, Any] = config["schema"]
    try:
        found = json.loads(answer)["elements"]
    except (ValueError, KeyError, TypeError, RecursionError) as exc:
        if finish_reason == "length":
            raise InvalidArgument(
                f"the model's JSON was cut off: raise max_tokens, which is {config['max_tokens']}"
            ) from exc
        raise _no_elements(answer) from exc
    least, most = schema.get("minItems", 0), schema.get("maxItems", len(answer))
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise _no_elements(answer)
    if not least <= len(found) <= most:
        raise EngineFault(
            f"the model gave {len(found)} elements, and the schema says {least} to {most}: the "
            "endpoint does not keep to schemas: name another model"
        )
    return found


def _no_elements(answer: str) -> EngineFault:
    return EngineFault(
        f"the model answered {answer[:100]!r}, which is not what the schema says: the endpoint "
        "does not keep to schemas: name another model"
    )
