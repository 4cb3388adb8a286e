"""Runs primitives before they are known to be needed, in spare time and on supposed values."""

from quire.programs.workflow.speculation.ahead import SpeculativeRuns
from quire.programs.workflow.speculation.experience import Experience
from quire.programs.workflow.speculation.figures import SpeculationFigures
from quire.programs.workflow.speculation.kept import KeptExperience
from quire.programs.workflow.speculation.run import Run
from quire.programs.workflow.speculation.service import SpeculationLedger, SpeculationService
from quire.programs.workflow.speculation.speculator import AheadRunner, Speculator

__all__ = [
    "AheadRunner",
    "Experience",
    "KeptExperience",
    "Run",
    "SpeculationFigures",
    "SpeculationLedger",
    "SpeculationService",
    "SpeculativeRuns",
    "Speculator",
]
