"""Selects the mutants to test: a seeded sample that is stable under changes of other code.

A mutant's rank in the sample is a hash of the seed and the mutant: a change elsewhere adds or
removes no other mutant, except at the end of the sample.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from heapq import nsmallest
from pathlib import Path

from tools.mutation.operators import Mutant, mutants_of
from tools.mutation.targets import SOURCE, WORK, Group

OFTEN = {"operator_arg_removal": 4, "operator_assignment": 4}
"""Operators of which only every fourth mutant is kept: they would be three of five mutants, and
most are found at once."""


Ranked = tuple[str, int, Mutant]
"""A mutant's place in the sample, and the number of its group."""


def sample(groups: Sequence[Group], size: int, seed: int) -> list[tuple[Group, Mutant]]:
    """Draw ``size`` of all mutants of those groups that share a sample, and for each other group
    its own sample; those of the first group come first."""
    sharing = [index for index, group in enumerate(groups) if group.own_sample is None]
    chosen = _smallest(size, groups, sharing, seed)
    for index, group in enumerate(groups):
        if group.own_sample is not None:
            chosen += _smallest(group.own_sample, groups, [index], seed)
    chosen.sort(key=lambda entry: (entry[1], entry[2].path, entry[2].start, entry[0]))
    return [(groups[index], mutant) for _, index, mutant in chosen]


def _smallest(
    size: int, groups: Sequence[Group], indexes: Iterable[int], seed: int
) -> list[Ranked]:
    ranked = (
        (_place(mutant, seed), index, mutant)
        for index in indexes
        for file in groups[index].source_files()
        for mutant in _remembered(file)
        if _is_kept(mutant)
    )
    return nsmallest(size, ranked, key=lambda entry: entry[0])


def _place(mutant: Mutant, seed: int) -> str:
    return hashlib.sha256(f"{seed} {mutant.identity()}".encode()).hexdigest()


def _is_kept(mutant: Mutant) -> bool:
    return int(mutant.identity(), 16) % OFTEN.get(mutant.operator, 1) == 0


def _remembered(file: Path) -> list[Mutant]:
    """The mutants of a file, cached until the file or the operators change, because finding them
    takes a second per file."""
    content = file.read_bytes() + Path(__file__).with_name("operators.py").read_bytes()
    kept = WORK / "mutants" / f"{hashlib.sha256(str(file).encode() + content).hexdigest()}.json"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        found = [asdict(mutant) for mutant in mutants_of(file, SOURCE)]
        kept.write_text(json.dumps(found), encoding="utf-8")
    return [Mutant(**fields) for fields in json.loads(kept.read_text(encoding="utf-8"))]
