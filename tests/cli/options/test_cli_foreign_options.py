"""Options of other servers are answered with ours."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from quire.cli.commands import SUBCOMMANDS
from quire.cli.options.foreign import _ADVICE, refuse_foreign
from quire.core.errors import InvalidArgument

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "configuration.md"
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]+")


def own_options() -> set[str]:
    serve = SUBCOMMANDS["serve"].load()
    return {
        name
        for param in serve.params
        if param.param_type_name == "option"
        for name in (*param.opts, *param.secondary_opts)
    }


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        (["m", "--max-num-seqs", "8"], "--max-num-seqs is an option of other servers: here it is "),
        (["m", "--max-num-seqs=8"], "--max-sequences N"),
        (["m", "--gpu-memory-utilization", "0.9"], "--kv-cache-bytes SIZE, a size and no fraction"),
        (["-m", "m"], "quire serve MODEL"),
        (["m", "--enable-prefix-caching"], "leave it out: that is always on"),
        (["m", "--trust-remote-code"], "is never run"),
    ],
)
def test_an_option_of_another_server_is_answered_with_ours(given: list[str], advice: str) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(advice)):
        refuse_foreign(given)


def test_our_own_are_left_alone() -> None:
    ours = own_options()
    refuse_foreign([*ours, "model", "--", "--max-num-seqs"])
    assert not ours & set(_ADVICE)


def test_what_is_advised_exists() -> None:
    advised = {name for advice in _ADVICE.values() for name in OPTION.findall(advice)}
    assert len(advised) > 10
    assert advised <= own_options()


def test_the_page_and_the_command_name_the_same() -> None:
    table = PAGE.read_text().partition("## Coming from vLLM")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    theirs = {name for row in rows for name in OPTION.findall(row)} - own_options()
    assert len(theirs) > 10
    assert theirs <= set(_ADVICE)
