"""The components that nodes of a template become: one module per theme, one class per kind."""

from collections.abc import Mapping
from types import MappingProxyType

from quire.programs.workflow.components.building import ComponentSite, Value
from quire.programs.workflow.components.component import Component
from quire.programs.workflow.components.documents import Chunking, Parsing
from quire.programs.workflow.components.flow import Condition, Tooling
from quire.programs.workflow.components.growth import GrowingComponent
from quire.programs.workflow.components.model import LanguageModel
from quire.programs.workflow.components.retrieval import Embedding, Reranking, Vectors
from quire.programs.workflow.components.search import Search

COMPONENTS: Mapping[str, Component] = MappingProxyType(
    {
        "parser": Parsing(),
        "chunker": Chunking(),
        "embedding": Embedding(),
        "vectors": Vectors(),
        "search": Search(),
        "rerank": Reranking(),
        "llm": LanguageModel(),
        "tool": Tooling(),
        "growth": GrowingComponent(),
        "condition": Condition(),
    }
)
"""Components by kind of engine; a condition has no engine."""

__all__ = ["COMPONENTS", "Component", "ComponentSite", "Value"]
