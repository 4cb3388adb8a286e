"""Equal pure primitives of a tenant run once, across its queries and applications."""

from quire.programs.workflow.sharing.query import Sharing
from quire.programs.workflow.sharing.results import SharedResults, SharingStatistics
from quire.programs.workflow.sharing.service import SharingService

__all__ = ["SharedResults", "Sharing", "SharingService", "SharingStatistics"]
