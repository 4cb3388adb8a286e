"""Describes the applications as other frameworks have them: as modules, which see nothing of one
another.

A module's requests are sent whole and its answers come whole. Requests of one round are sent at
once, the rounds of a module one after the other. The requests are those of the same query: as many
texts, prompts and tokens as in the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from benchmarks.ayo import applications as prompts
from benchmarks.ayo.applications import NUM_CHUNKS
from benchmarks.ayo.stated import Stated
from benchmarks.ayo.texts import ANSWER_TOKENS, QUERY_TOKENS, SITUATE_TOKENS, VERDICT_TOKENS
from benchmarks.ayo.world import EMBEDDER, RANKER
from quire.core.ids import ModelId
from quire.programs.workflow.graphs.prompts import Prompt, PromptPart

NUM_QUERIES, NUM_FOUND, TOP_N = 3, 16, 3


@dataclass(frozen=True, slots=True)
class Texts:
    """A request for an encoder."""

    model: ModelId
    num: int


@dataclass(frozen=True, slots=True)
class Asked:
    """A request for a model. ``role``: see ``Application.roles``."""

    role: str
    prompt: tuple[PromptPart, ...]
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Served:
    """A request for the ``chunker``, the ``database`` or the ``web``."""

    where: str
    seconds: float


Request = Texts | Asked | Served
Round = tuple[Request, ...]


@dataclass(frozen=True, slots=True)
class Module:
    """One module. ``needs``: the modules whose answers it uses. ``agent``: the one that AutoGen
    gives it to. ``if_searched``: it is left out for queries that need no search."""

    name: str
    agent: str
    needs: tuple[str, ...]
    rounds: tuple[Round, ...]
    if_searched: bool = False


def _asked(role: str, prompt: str, num_tokens: int, element: str = "") -> Asked:
    """``element``: what stands behind the names of parts that are one of several."""
    parts = tuple(
        PromptPart(name=f"{part.name}.{element}") if part.name and element else part
        for part in Prompt.read(prompt, "prompt").parts
    )
    return Asked(role, parts, num_tokens)


def _index(stated: Stated, agent: str, needs: tuple[str, ...] = ()) -> Module:
    rounds: tuple[Round, ...] = (
        (Texts(EMBEDDER, NUM_CHUNKS),),
        (Served("database", stated.ingest_s * NUM_CHUNKS),),
    )
    if not needs:
        rounds = ((Served("chunker", stated.chunk_s),), *rounds)
    return Module("index", agent, needs, rounds)


def _embed(num: int, needs: tuple[str, ...] = ()) -> Module:
    return Module("embed question", "retrieval", needs, ((Texts(EMBEDDER, num),),))


def _search(stated: Stated, num: int) -> Module:
    rounds = ((Served("database", stated.search_s * num),),)
    return Module("search", "retrieval", ("index", "embed question"), rounds)


def _rank(num: int) -> Module:
    return Module("rank", "ranker", ("search",), ((Texts(RANKER, num),),))


def _several(prompt: str, name: str, num: int) -> str:
    """``prompt``, in which the part ``name`` stands for so many elements."""
    return prompt.replace(f"{{{name}}}", f"{{{name}}}" * num)


def search(stated: Stated) -> list[Module]:
    core = _asked("core", prompts.FROM_FOUND, ANSWER_TOKENS)
    return [
        Module("proxy", "proxy", (), ((_asked("proxy", prompts.GUESS, ANSWER_TOKENS),),)),
        Module("judge", "judge", ("proxy",), ((_asked("proxy", prompts.JUDGE, VERDICT_TOKENS),),)),
        Module("web", "web", ("judge",), ((Served("web", stated.web_s),),), if_searched=True),
        Module("synthesis", "synthesizer", ("web",), ((core,),)),
    ]


def naive(stated: Stated) -> list[Module]:
    leaves = tuple(
        _asked("core", prompts.ANSWER, ANSWER_TOKENS, str(place)) for place in range(TOP_N)
    )
    combine = _asked("core", _several(prompts.COMBINE, "answers", TOP_N), ANSWER_TOKENS)
    return [
        _index(stated, "retrieval"),
        _embed(1),
        _search(stated, 1),
        Module("synthesis", "synthesizer", ("search",), (leaves, (combine,))),
    ]


def advanced(stated: Stated) -> list[Module]:
    first = _asked("core", prompts.ANSWER, ANSWER_TOKENS, "0")
    later = tuple(
        (_asked("core", prompts.REFINE, ANSWER_TOKENS, str(place)),) for place in range(1, TOP_N)
    )
    expand = _asked("core", prompts.EXPAND, QUERY_TOKENS * NUM_QUERIES)
    return [
        _index(stated, "retrieval"),
        Module("expand", "expander", (), ((expand,),)),
        _embed(NUM_QUERIES, ("expand",)),
        _search(stated, NUM_QUERIES),
        _rank(NUM_QUERIES * NUM_FOUND),
        Module("synthesis", "synthesizer", ("rank",), ((first,), *later)),
    ]


def contextual(stated: Stated) -> list[Module]:
    situate = tuple(
        _asked("light", prompts.SITUATE, SITUATE_TOKENS, str(place)) for place in range(NUM_CHUNKS)
    )
    answer = _asked("core", _several(prompts.ANSWER, "context", TOP_N), ANSWER_TOKENS)
    return [
        Module("situate", "situater", (), ((Served("chunker", stated.chunk_s),), situate)),
        _index(stated, "retrieval", ("situate",)),
        _embed(1),
        _search(stated, 1),
        _rank(2 * NUM_FOUND),
        Module("synthesis", "synthesizer", ("rank",), ((answer,),)),
    ]


def instructed(modules: Sequence[Module], instruction: str) -> list[Module]:
    """Return ``modules`` with ``instruction`` in front of all prompts."""

    def part(one: PromptPart) -> PromptPart:
        if one.name is not None:
            return one
        return replace(one, text=one.text.replace(prompts.INSTRUCTION, instruction))

    def request(one: Request) -> Request:
        if not isinstance(one, Asked):
            return one
        return replace(one, prompt=tuple(map(part, one.prompt)))

    return [
        replace(one, rounds=tuple(tuple(map(request, asked)) for asked in one.rounds))
        for one in modules
    ]


MODULES: Mapping[str, Callable[[Stated], list[Module]]] = MappingProxyType(
    {"search": search, "naive": naive, "advanced": advanced, "contextual": contextual}
)
"""By the application's name, in the order of its template."""
