"""Writes the report of a run: shares by group, and every surviving mutant."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tools.mutation.ledger import MutantOutcome
from tools.mutation.operators import Mutant

CodePlace = tuple[str, str, str, str]
"""Path, function, and the code before and after."""

EQUIVALENT = Path(__file__).with_name("equivalent.toml")


@dataclass(frozen=True, slots=True)
class Tried:
    group: str
    mutant: Mutant
    outcome: MutantOutcome


def reasons(file: Path = EQUIVALENT) -> dict[CodePlace, str]:
    """Why a mutant is equivalent, by its path, function and code."""
    entries = tomllib.loads(file.read_text(encoding="utf-8")).get("mutant", [])
    return {
        (entry["path"], entry["function"], entry["before"], entry["after"]): entry["why"]
        for entry in entries
    }


def report(tried: Iterable[Tried], why: dict[CodePlace, str]) -> str:
    tried = list(tried)
    lines = ["# Mutants", "", "| group | tried | killed | timed out | survived | share |"]
    lines.append("|---|---:|---:|---:|---:|---:|")
    for group in [*dict.fromkeys(one.group for one in tried), "all"]:
        of_group = [one for one in tried if group in (one.group, "all")]
        num_killed, num_late = (
            sum(one.outcome is outcome for one in of_group)
            for outcome in (MutantOutcome.KILLED, MutantOutcome.TIMED_OUT)
        )
        num_survived = len(of_group) - num_killed - num_late
        lines.append(
            f"| {group} | {len(of_group)} | {num_killed} | {num_late} | {num_survived} | "
            f"{share(of_group):.1%} |"
        )
    unnoticed = [one for one in tried if not one.outcome.is_noticed]
    lines += _listed(
        "Not noticed", [one for one in unnoticed if place_in_code(one.mutant) not in why], why
    )
    lines += _listed(
        "Not noticed: no faults", [o for o in unnoticed if place_in_code(o.mutant) in why], why
    )
    return "\n".join(lines) + "\n"


def share(tried: Iterable[Tried]) -> float:
    """Return the share of mutants that were noticed; equivalent mutants count as not noticed."""
    noticed = [one.outcome.is_noticed for one in tried]
    return sum(noticed) / len(noticed) if noticed else 1.0


def place_in_code(mutant: Mutant) -> CodePlace:
    """Return what ``equivalent.toml`` names a mutant by."""
    return mutant.path, mutant.function, mutant.before, mutant.after


def _listed(title: str, tried: list[Tried], why: dict[CodePlace, str]) -> list[str]:
    lines = ["", f"## {title}: {len(tried)}"]
    for one in tried:
        mutant = one.mutant
        lines += ["", f"src/{mutant.path}:{mutant.start} {mutant.function} ({mutant.operator}, "]
        lines[-1] += f"{one.outcome}, {mutant.identity()})"
        if reason := why.get(place_in_code(mutant)):
            lines.append(f"why: {reason}")
        lines += ["```diff", *_prefixed("-", mutant.before), *_prefixed("+", mutant.after), "```"]
    return lines


def _prefixed(sign: str, code: str) -> list[str]:
    return [f"{sign} {line}" for line in code.splitlines()]
