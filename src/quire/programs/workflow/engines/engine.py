"""The engines of a template: their kinds, their profiles, and what may be configured.

Must not know how an engine is reached; ``runners`` do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, get_args

from quire.core.errors import InvalidArgument
from quire.programs.workflow.engines.endpoint import KEYS, Endpoint, endpoint_of
from quire.programs.workflow.engines.tools_elsewhere import (
    TOOL_KEYS,
    McpTools,
    ProgramTool,
    tools_elsewhere,
)

EngineKind = Literal[
    "llm", "embedding", "rerank", "vectors", "search", "parser", "chunker", "tool", "growth"
]
ENGINE_KINDS: tuple[str, ...] = get_args(EngineKind)
OTHERWISE = MappingProxyType({"mcp": "kind 'tool' with config {'mcp': SERVER}"})
"""Names that are not kinds, with what to write in their place."""

CONFIG: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "llm": frozenset({"light"}) | KEYS,
        "embedding": frozenset({"model"}),
        "rerank": frozenset({"model"}),
        "vectors": frozenset(),
        "search": frozenset(),
        "parser": frozenset(),
        "chunker": frozenset(),
        "tool": TOOL_KEYS,
        "growth": frozenset({"functions"}),
    }
)
"""The fields of ``config`` that an engine of each kind takes."""

GAIN = 1.05
"""A batch is worth its size while twice the elements give at least this much more throughput."""


@dataclass(frozen=True, slots=True)
class Profile:
    """``max_efficient_batch``: the elements of one batch beyond which throughput does not rise, or
    None if that is unknown. ``times``: measured pairs of elements and seconds; the elements of a
    model are the tokens of a prompt. ``token_s``: seconds for each token that a model writes.
    ``assumed``: a guess, which a measured profile of the node's model replaces."""

    max_efficient_batch: int | None = None
    times: tuple[tuple[int, float], ...] = ()
    token_s: float = 0.0
    assumed: bool = False

    def __post_init__(self) -> None:
        batch = self.max_efficient_batch
        if batch is not None and batch < 1:
            raise InvalidArgument(
                f"profile.max_efficient_batch is {batch}: give 1 or more, or None if unknown"
            )

    def seconds(self, num_elements: int) -> float:
        """Estimate the time of one batch of ``num_elements``: on the line between two measured
        sizes, or at the rate of the largest one beyond it; 0.0 if nothing was measured."""
        before, before_s = 0, 0.0
        for size, time_s in self.times:
            if num_elements <= size:
                share = (num_elements - before) / (size - before)
                return before_s + share * (time_s - before_s) if before else time_s
            before, before_s = size, time_s
        return before_s * num_elements / before if before else 0.0

    @classmethod
    def of(cls, times: Sequence[tuple[int, float]]) -> Profile:
        """Make a profile from measured batches of rising size.

        Its efficient batch is the largest that still raised throughput.


        Raises:
            InvalidArgument: no times, sizes that do not rise, or a time that is not above zero.
        """
        sizes = [size for size, _ in times]
        if not times or sizes != sorted(set(sizes)) or any(time <= 0 for _, time in times):
            raise InvalidArgument(
                f"profile times {list(times)}: give pairs of elements and seconds, elements "
                "rising, seconds above 0"
            )
        best, rate = sizes[0], sizes[0] / times[0][1]
        for size, time_s in times[1:]:
            if size / time_s < GAIN * rate:
                break
            best, rate = size, size / time_s
        return cls(best, tuple(times))


NO_PROFILE = Profile()
ASSUMED_EMBEDDING = Profile(16, assumed=True)
"""The profile of an encoder that was not measured, as in Ayo's Figure 4a."""


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine that components name.

    ``kind``: one of ``ENGINE_KINDS``; ``name``: its name for components (default: its kind).
    ``config``: ``model`` of the node for llm, embedding and rerank (default: the node's first);
    for llm ``light``: true for the node's model with the fewest parameters, or the fields of an
    ``Endpoint`` for a model that is not the node's; ``functions`` by name for tool and growth; for
    tool, in their place, ``mcp`` (the name of an MCP server of the node, or its URL) or ``program``
    (the name of an uploaded program), with ``timeout_s`` and, for a URL, ``api_key_env``.
    ``resources`` and ``instances`` belong to the node, which serves all workflows with the same
    engines; here they can only be left as they are. ``api_key``: see ``use_keys``.

    Raises:
        InvalidArgument: an unknown kind, or a field that this engine does not take.
    """

    kind: str
    config: Mapping[str, Any] = field(default_factory=dict)
    resources: Mapping[str, Any] = field(default_factory=dict)
    instances: int = 1
    profile: Profile = NO_PROFILE
    name: str = ""
    api_key: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.kind in OTHERWISE:
            raise InvalidArgument(
                f"there is no engine of kind {self.kind!r}: use {OTHERWISE[self.kind]}",
                param="kind",
            )
        if self.kind not in ENGINE_KINDS:
            raise InvalidArgument(
                f"unknown engine kind {self.kind!r}: use one of {', '.join(ENGINE_KINDS)}",
                param="kind",
            )
        if not self.name:
            object.__setattr__(self, "name", self.kind)
        self._check_config()

    def _check_config(self) -> None:
        if self.resources or self.instances != 1:
            raise InvalidArgument(
                f"engine {self.name!r}: resources and instances belong to the node: start it with "
                "the devices and --encoder-instances that it should have",
                param="instances" if not self.resources else "resources",
            )
        if not isinstance(self.profile, Profile):
            raise InvalidArgument(
                f"engine {self.name!r}: profile is {self.profile!r:.80}: give a Profile",
                param="profile",
            )
        check_keys(f"engine {self.name!r}", self.config, CONFIG[self.kind], f"{self.name}.")
        if self.kind == "llm":
            endpoint_of(self.name, self.config)
        light = self.config.get("light", False)
        if not isinstance(light, bool) or (light and self.config.get("model") is not None):
            raise InvalidArgument(
                f"engine {self.name!r}: light is {light!r}: give true or false, and true only "
                "without a model, because it chooses one",
                param="light",
            )
        if self.kind == "growth" or (self.kind == "tool" and self.tools_elsewhere is None):
            functions = self.config.get("functions", {})
            is_mapping = isinstance(functions, Mapping) and bool(functions)
            if not is_mapping or not all(callable(one) for one in functions.values()):
                raise InvalidArgument(
                    f"engine {self.name!r}: config 'functions' must name at least one function: "
                    "give a mapping of names to functions",
                    param="functions",
                )

    @property
    def endpoint(self) -> Endpoint | None:
        """The endpoint of a model that is not the node's."""
        return endpoint_of(self.name, self.config) if self.kind == "llm" else None

    @property
    def tools_elsewhere(self) -> McpTools | ProgramTool | None:
        """The MCP server or program that an engine of kind tool calls in place of functions."""
        return tools_elsewhere(self.name, self.config) if self.kind == "tool" else None

    @property
    def functions(self) -> Mapping[str, Callable[..., Any]]:
        """The functions of an engine of kind tool or growth."""
        functions: Mapping[str, Callable[..., Any]] = self.config.get("functions", {})
        return functions


def check_keys(where: str, given: Mapping[str, Any], known: frozenset[str], path: str = "") -> None:
    """Refuse keys that nothing reads. ``path``: the text before a key in its field's name.

    Raises:
        InvalidArgument: a key that is not in ``known``.
    """
    for key in given:
        if key not in known:
            takes = ", ".join(sorted(known)) or "nothing"
            raise InvalidArgument(f"{where} has no {key!r}; it takes {takes}", param=f"{path}{key}")
