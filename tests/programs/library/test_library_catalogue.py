"""The catalogue: every name is a program, and a name costs nothing until it is asked for."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from library_args import LIBRARY_ARGS
from library_run import run
from msgspec.structs import replace

from quire.core.errors import InvalidArgument, ProgramFailed
from quire.core.ids import EngineId
from quire.core.traits import SUPERTRAITS, Trait
from quire.programs import library
from quire.programs.library import LIBRARY, THEMES, find, summary_of, theme_of
from quire.testing import FakeEngine, LocalNode, fake_pool


@pytest.mark.parametrize("name", LIBRARY)
def test_every_program_says_what_it_is(name: str) -> None:
    program = find(name)
    assert program is LIBRARY[name]
    assert program.name == name
    assert program.source is not None
    path = Path(program.source)
    assert path.relative_to(Path(library.__file__).parent) == Path(theme_of(name)) / f"{name}.py"
    assert summary_of(program).endswith(".")
    assert f"quire run {name}" in path.read_text(encoding="utf-8"), "its docstring shows a call"


def test_a_name_stands_under_one_theme() -> None:
    names = [name for theme in THEMES.values() for name in theme]
    assert sorted(names) == sorted(set(names)) == sorted(LIBRARY)


def test_find_names_what_there_is() -> None:
    with pytest.raises(InvalidArgument, match="quire run --list"):
        find("no_such_program")
    assert "no_such_program" not in LIBRARY
    assert LIBRARY.get("no_such_program") is None


def test_the_catalogue_imports_no_program() -> None:
    """A command line that runs one program does not import all."""
    script = (
        "import sys, quire.programs.library as l; before = len(list(l.LIBRARY)); "
        "themes = tuple(f'{l.__name__}.{theme}.' for theme in l.THEMES); "
        "print(before, [name for name in sys.modules if name.startswith(themes)])"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.split(" ", 1) == [str(len(LIBRARY)), "[]\n"]


@pytest.mark.parametrize("name", LIBRARY_ARGS)
@pytest.mark.parametrize("page_size", [1, 16])
async def test_every_program_runs_and_leaves_nothing_behind(name: str, page_size: int) -> None:
    """On a model that says anything."""
    result, _, _ = await run(name, *LIBRARY_ARGS[name], page_size=page_size)
    assert json.dumps(result) != "null"


@pytest.mark.parametrize("name", [name for name in LIBRARY_ARGS if LIBRARY[name].traits])
async def test_a_program_needs_no_more_than_its_manifest_says(name: str) -> None:
    """It runs on a model that has the declared traits alone, and those that they are built on."""
    declared = {Trait(trait) for trait in LIBRARY[name].traits}
    needed = declared.union(*(bases_of(trait) for trait in declared))
    engine = FakeEngine(fake_pool(page_size=4, num_blocks=256))
    engine._info = replace(engine.info, traits=sorted(needed))
    async with LocalNode({EngineId("fake"): engine}) as node:
        assert await node.run(LIBRARY[name], *LIBRARY_ARGS[name]) is not None


@pytest.mark.parametrize("name", LIBRARY)
def test_the_traits_in_a_docstring_are_those_of_the_manifest(name: str) -> None:
    """It may name those that a trait is built on, to say what for; it leaves out none but those
    that nearly every program has."""
    program = find(name)
    text = " ".join((sys.modules[program.main.__module__].__doc__ or "").split())
    if "Trait" not in text:
        return
    said = re.split(r"\bTraits?: ", text)[1].partition("::")[0]
    named = {trait for trait in Trait if re.search(rf"\b{trait}\b", said)}
    declared = {Trait(trait) for trait in program.traits}
    assert named <= declared.union(*(bases_of(trait) for trait in declared))
    rest = declared - {Trait.TOKENIZE, Trait.MESSAGING}
    assert (rest or declared) <= named.union(*(bases_of(trait) for trait in named))


def bases_of(trait: Trait) -> set[Trait]:
    """All traits that ``trait`` is built on."""
    direct = SUPERTRAITS.get(trait, ())
    return set(direct).union(*(bases_of(base) for base in direct))


@pytest.mark.parametrize("number", ["1000000000", "0", "-1", "x", "١"])
@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("self_consistency", ("q", "{}")),
        ("best_of_n", ("q", "{}")),
        ("beam_search", ("q", "{}")),
        ("tree_of_thought", ("q", "{}")),
        ("tree_of_thought", ("q", "2", "{}")),
        ("graph_of_thought", ("1 -1", "{}")),
        ("mcts", ("q", "{}")),
        ("mcts", ("q", "2", "{}")),
        ("jacobi_decoding", ("q", "8", "{}")),
        ("speculative_decoding", ("q", "8", "{}")),
        ("prompt_lookup", ("q", "8", "{}")),
    ],
)
async def test_how_many_is_bounded(name: str, args: tuple[str, ...], number: str) -> None:
    """They run in the node: no client may fill it, or hold its loop, with a number."""
    with pytest.raises(InvalidArgument, match="give an integer from 1 to 1024"):
        await run(name, *(arg.format(number) for arg in args))


@pytest.mark.parametrize(
    ("name", "args", "wrong"),
    [
        ("react", ("q", "{bad"), "argument records of program 'react' is '{bad'"),
        ("react", ("q", '{"Kabo": 3}'), r"records .*is '\{\"Kabo\": 3\}'.* \(Expected `object`"),
        ("modular_caching", ("[]", "a: q"), "schema .*is '\\[\\]'"),
        ("modular_caching", ('{"a": 1}', "a: q"), "schema .*Expected `str`"),
        ("modular_caching", ("[" * 100_000, "a: q"), "schema of"),
    ],
)
async def test_json_of_another_form_is_refused_with_an_example(
    name: str, args: tuple[str, ...], wrong: str
) -> None:
    with pytest.raises(InvalidArgument, match=rf"{wrong}.*, e\.g\. \{{"):
        await run(name, *args)


async def test_so_many_pages_at_once_are_refused_before_there_are_handles() -> None:
    with pytest.raises(ProgramFailed, match="pages in one call"):
        await run("low_level_completion", "Hello", "1000000000")


async def test_words_are_forbidden_in_any_case_and_patterns_are_words() -> None:
    """A pattern of Python's could keep the node for years, with one search."""
    result, _, _ = await run("output_validation", "q", "(.|.|.)*Z$", "64")
    assert result["is_valid"]
    assert len(result["text"]) > 30, "long enough for the pattern to take years"
    word = result["text"][4:8]
    result, _, _ = await run("output_validation", "q", f"never said|{word.swapcase()}", "64")
    assert result["num_rejected"] > 0
    with pytest.raises(ProgramFailed, match="forbids nothing"):
        await run("output_validation", "q", "|")
