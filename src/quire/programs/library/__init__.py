"""The shipped programs, each a short file that shows one technique; ``find`` returns one by name.

Owns the catalogue: the names, by theme. A program's module is imported at its first use, so that a
command that runs one program does not import all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from types import MappingProxyType

from quire.core.errors import InvalidArgument
from quire.programs.inferlet import Inferlet, load_inferlet

THEMES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "completion": ("text_completion", "low_level_completion", "parallel_generation"),
        "caching": ("prefix_caching", "modular_caching", "movable_modules"),
        "attention": (
            "windowed_attention",
            "attention_sink",
            "streaming",
            "hierarchical_attention",
            "heavy_hitters",
            "snapkv",
        ),
        "decoding": (
            "json_output",
            "ebnf_decoding",
            "token_healing",
            "output_validation",
            "watermarking",
            "watermark_detection",
            "beam_search",
            "best_of_n",
            "contrastive_decoding",
            "context_aware_decoding",
            "prompt_lookup",
            "speculative_decoding",
            "jacobi_decoding",
        ),
        "reasoning": (
            "self_consistency",
            "tree_of_thought",
            "recursion_of_thought",
            "graph_of_thought",
            "skeleton_of_thought",
            "mcts",
        ),
        "agents": ("react", "codeact", "swarm", "async_tools"),
        "retrieval": ("retrieval",),
    }
)
"""The names by theme. ``NAME`` is the program of that name in ``library/THEME/NAME.py``."""


class Library(Mapping[str, Inferlet]):
    """Programs by name, imported when they are accessed. Listing the names imports nothing."""

    def __init__(self, themes: Mapping[str, tuple[str, ...]]) -> None:
        self._modules = {
            name: f"{__name__}.{theme}.{name}" for theme, names in themes.items() for name in names
        }

    def __getitem__(self, name: str) -> Inferlet:
        program = getattr(import_module(self._modules[name]), name)
        assert isinstance(program, Inferlet), f"{self._modules[name]} has no program {name}"
        return program

    def __contains__(self, name: object) -> bool:
        return name in self._modules

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)


LIBRARY = Library(THEMES)
"""Every shipped program by name."""


def theme_of(name: str) -> str:
    """The theme of ``name`` in the catalogue."""
    return next(theme for theme, names in THEMES.items() if name in names)


def summary_of(program: Inferlet) -> str:
    """The first sentence of a program's description."""
    return " ".join(program.description.partition("\n\n")[0].replace("``", "`").split())


def find(path_or_name: str) -> Inferlet:
    """The program of a Python file, or the shipped program of that name. A file's code is executed.

    Raises:
        InvalidArgument: there is neither, or the file has no entry.
    """
    if path_or_name in LIBRARY:
        return LIBRARY[path_or_name]
    if path_or_name.endswith(".py") or "/" in path_or_name:
        return load_inferlet(Path(path_or_name))
    raise InvalidArgument(
        f"no program {path_or_name!r} in the library{suggestion(path_or_name)}: name a file ending "
        "in .py, or a program that 'quire run --list' shows"
    )


def suggestion(name: str) -> str:
    """A question to append to "no program ``name``", if there are programs with similar names."""
    near = get_close_matches(name, LIBRARY, n=3)
    return f" (did you mean {' or '.join(near)}?)" if near else ""


__all__ = ["LIBRARY", "THEMES", "Library", "find", "suggestion", "summary_of", "theme_of"]
