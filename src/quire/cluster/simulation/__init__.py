"""A cluster in virtual time: the router's strategies over nodes that are modelled.

Strategies, the three calls, control, leases and the prefix indexes are the production code; engines
compute nothing and take the time that their costs say, and so do the ways between them.
"""

from quire.cluster.simulation.cluster_study import ClusterFinding, ClusterStudy, examine_cluster
from quire.cluster.simulation.figures import ClusterSummary, RequestOutcome
from quire.cluster.simulation.requests import Lengths, RequestLoad

__all__ = [
    "ClusterFinding",
    "ClusterStudy",
    "ClusterSummary",
    "Lengths",
    "RequestLoad",
    "RequestOutcome",
    "examine_cluster",
]
