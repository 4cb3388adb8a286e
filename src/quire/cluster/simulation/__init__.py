"""A cluster in virtual time: the router's strategies over nodes that are modelled.

Strategies, the three calls, control, leases and the prefix indexes are the production code. Engines
and links are models: they compute and send nothing, and take the time that their costs give.
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
