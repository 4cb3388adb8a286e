"""The committed reference is what the source says, and the ``Api`` has all of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from programs_port import Ports

from quire.core.errors import UnknownHandle
from quire.core.traits import Trait
from quire.programs import sdk
from quire.programs.api import TRAIT_FUNCTIONS, connect_api
from quire.programs.sdk import dists
from tools.pages import sdk as sdk_page
from tools.pages.api import _functions, render

COMMITTED = Path(__file__).parents[2] / "docs" / "reference" / "api.md"

PIE_TABLE_1 = """get_arg send receive http_get available_models available_traits create_queue
synchronize set_queue_priority export_kvpage import_kvpage alloc_kvpage dealloc_kvpage
alloc_emb dealloc_emb copy_kvpage forward mask_kvpage embed_txt num_embs_needed embed_img
tokenize detokenize get_vocabs get_next_dist"""


def test_the_committed_file_is_current() -> None:
    assert COMMITTED.read_text() == render(), "run `make docs`"


def test_the_sdk_is_documented_as_it_is() -> None:
    page = sdk_page.render()
    assert COMMITTED.with_name("sdk.md").read_text() == page, "run `make docs`"
    for name in sdk.__all__:
        assert name == "Sees" or f"\n### {name}\n" in page, name
    assert "\n#### next_dists_scored\n" in page
    assert "role: str = 'user'" in page
    assert page.count("```") % 2 == 0


def test_what_is_documented_can_be_imported_from_where_the_page_says() -> None:
    for heading, entries in sdk_page.SECTIONS.items():
        module = dists if heading in sdk_page._NOTES else sdk
        for entry in entries:
            assert entry.__name__ in module.__all__, entry
    assert "from quire.programs.sdk.dists import" in sdk_page.render()


async def test_every_function_of_every_trait_is_on_the_api(ports: Ports) -> None:
    api = connect_api(ports.connect)
    names = [name for trait in TRAIT_FUNCTIONS.values() for name, _, _ in _functions(trait)]
    assert list(TRAIT_FUNCTIONS) == list(Trait)
    assert len(set(names)) == len(names)
    assert [name for name in names if not callable(getattr(api, name, None))] == []
    assert [name for name in PIE_TABLE_1.split() if name not in names] == []
    api.close()


async def test_a_function_is_bound_once_and_to_its_own_program(ports: Ports) -> None:
    ours, other = connect_api(ports.connect), connect_api(ports.connect)
    assert ours.decode is ours.decode
    queue = ours.create_queue()
    page = ours.alloc_kvpage(queue, 1)
    with pytest.raises(UnknownHandle, match="another program"):
        other.dealloc_kvpage(other.create_queue(), page)
    for api in (ours, other):
        api.close()
