"""``Conversation``: the turns of a user, a model and its tools, in the model's own chat format.

::

    chat = Conversation(ctx, tools=[get_weather]).say("What is the weather in Lima?")
    while (answer := await chat.answer(max_tokens=128)).calls:
        chat.add_results(await chat.tools.call_all(answer.calls))
    return answer.content

Owns the messages, and keeps its context equal to the chat template's rendering of them. The
template determines the format of tool calls and reasoning (``quire.programs.chat``), so the same
program works with models of different formats.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping, Sequence
from itertools import count, takewhile
from operator import eq
from typing import Any, Self

from quire.core.errors import InvalidArgument
from quire.programs.chat.answer import AnswerParser
from quire.programs.chat.dialects import Dialect, marker_tokens
from quire.programs.chat.messages import as_messages, for_template, turn_messages
from quire.programs.chat.pieces import Answer, Piece, whole_answer
from quire.programs.chat.reasoning import THINK_START
from quire.programs.chat.template import chat_template, dialect_of
from quire.programs.sdk.context import Context
from quire.programs.sdk.generation import Generation
from quire.programs.sdk.tools import Tool, Toolbox


class Answering:
    """One turn of the model: ``await`` it for the whole ``Answer``, ``async for piece in`` it for
    its pieces as they arrive.

    It starts when it is created. Its conversation includes it once it was read to its end. Leaving
    the loop early does not stop it: call ``cancel``, or use ``async with``.
    """

    def __init__(
        self, generation: Generation, parser: AnswerParser, on_end: Callable[[Answer], None]
    ) -> None:
        self.generation = generation
        """The generation; ``(await answering.generation).finish_reason`` says why it ended."""
        self._parser = parser
        self._on_end = on_end
        self._texts: list[str] = []
        self._pieces: list[Piece] = []
        self._num_told = 0
        self._answer: Answer | None = None

    @property
    def text(self) -> str:
        """The model's output as far as it was read, including calls, reasoning and markers."""
        return "".join(self._texts)

    def cancel(self) -> None:
        """End it early. Awaiting it raises, and the conversation does not include it."""
        self.generation.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.generation.__aexit__(*exc)

    def __await__(self) -> Generator[Any, None, Answer]:
        return self._whole().__await__()

    async def __aiter__(self) -> AsyncGenerator[Piece, None]:
        if self._answer is None:
            async for text in self.generation:
                self._texts.append(text)
                self._pieces += self._parser.feed(text)
                while self._num_told < len(self._pieces):
                    yield self._next_piece()
            if self._answer is None:
                self._pieces += self._parser.finish()
                self._answer = whole_answer(self._pieces)
                self._on_end(self._answer)
        while self._num_told < len(self._pieces):
            yield self._next_piece()

    def _next_piece(self) -> Piece:
        self._num_told += 1
        return self._pieces[self._num_told - 1]

    async def _whole(self) -> Answer:
        async for _ in self:
            pass
        assert self._answer is not None, "the loop has ended"
        return self._answer


class Conversation:
    """See the module docstring. The conversation is appended to the present text of ``context``,
    which from then on must be changed by the conversation alone.

    ``messages``: the first ones. ``tools``: functions, or a ``Toolbox``, that the model may call.
    ``variables``: further names for the chat template, such as ``enable_thinking=False``.

    Raises:
        InvalidArgument: the model has no chat template, or a tool is not a function.
    """

    def __init__(
        self,
        context: Context,
        messages: Iterable[Mapping[str, Any]] = (),
        *,
        tools: Toolbox | Iterable[Tool | Callable[..., Any]] = (),
        **variables: Any,
    ) -> None:
        self.context = context
        self.messages: list[dict[str, Any]] = [dict(message) for message in as_messages(messages)]
        self.tools = tools if isinstance(tools, Toolbox) else Toolbox(tools)
        self._variables = variables
        self._start = len(context)
        self._pending: Answer | None = None
        """The last answer, if its calls have no results yet."""
        chat_template(context.model.served)
        self._dialect = dialect_of(context.model.served)
        self._markers: dict[Dialect, frozenset[int]] = {}
        self._call_numbers = count(1)

    def say(self, text: str, *, role: str = "user") -> Self:
        """Append a message.

        Raises:
            InvalidArgument: the model has called tools whose results are missing.
        """
        self._check_results()
        self.messages.append({"role": role, "content": text})
        return self

    def answer(self, **options: Any) -> Answering:
        """The model's turn; options as for ``Context.generate``. With a ``grammar``, calls are
        expected in Hermes' format.

        Raises:
            InvalidArgument: no messages, or the template refuses them; calls without results; the
                context is generating.
            PromptTooLong: the model's context is full.
        """
        self._check_results()
        template = chat_template(self.context.model.served)
        schemas = self.tools.schemas() or None
        messages = for_template(self.messages, self._dialect)
        prompt = template.render(messages, tools=schemas, variables=self._variables)
        self._hold(prompt)
        dialect = self._dialect if options.get("grammar") is None else Dialect.HERMES
        parser = AnswerParser(
            tools=frozenset(self.tools.names),
            reasoning=True,
            starts_in_reasoning=prompt.rstrip().endswith(THINK_START),
            dialect=dialect,
            new_id=self._new_id,
        )
        generation = self.context.generate(shown=self._shown(dialect), **options)
        return Answering(generation, parser, self._answered)

    def add_results(self, results: Sequence[str]) -> Self:
        """Append the results of the last answer's calls, in their order.

        Raises:
            InvalidArgument: the number of results is not the number of calls.
        """
        num_calls = 0 if self._pending is None else len(self._pending.calls)
        if self._pending is None or len(results) != num_calls:
            raise InvalidArgument(
                f"{len(results)} results for {num_calls} calls: give one for each call of the "
                "last answer, in their order"
            )
        self.messages += turn_messages(self._pending, results)
        self._pending = None
        return self

    def _new_id(self) -> str:
        """Nine letters and digits, as Mistral's templates require. Deterministic, because some
        templates show ids to the model and a program may be replayed."""
        return f"call{next(self._call_numbers):05d}"

    def _answered(self, answer: Answer) -> None:
        if answer.calls:
            self._pending = answer
        else:
            self.messages += turn_messages(answer, ())

    def _check_results(self) -> None:
        if self._pending is not None:
            names = ", ".join(call.name for call in self._pending.calls)
            raise InvalidArgument(
                f"the model has called {names}: give the results with add_results() first"
            )

    def _hold(self, prompt: str) -> None:
        """Set the context's text to ``prompt``; the common prefix with its present text stays
        computed."""
        tokens = self.context.model.tokenizer.encode(prompt)
        held = self.context.tokens[self._start :]
        num_same = sum(1 for _ in takewhile(bool, map(eq, held, tokens)))
        self.context.truncate(self._start + num_same)
        self.context.fill(tokens[num_same:])

    def _shown(self, dialect: Dialect) -> frozenset[int]:
        if dialect not in self._markers:
            tokenizer, has_tools = self.context.model.tokenizer, bool(self.tools.names)
            self._markers[dialect] = marker_tokens(dialect, tokenizer, tools=has_tools)
        return self._markers[dialect]
