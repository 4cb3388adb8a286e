"""The manifests of ``examples/cluster/kubernetes`` agree with each other and with Quire.

That Kubernetes accepts them is checked against its own schemas by ``make test-ray``.
"""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

from quire.cli.cluster_options import cluster_commands
from quire.cluster.deployment.reading import read_cluster
from quire.cluster.deployment.spec import ClusterSpec, OtherRay

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "examples" / "cluster" / "kubernetes"
IN_POD = "/etc/quire"


def manifest(name: str) -> Any:
    return yaml.safe_load((FOLDER / f"{name}.yaml").read_text("utf-8"))


@pytest.fixture(scope="module")
def cluster() -> ClusterSpec:
    return read_cluster(FOLDER / "cluster.yaml", cluster_commands())


@pytest.fixture(scope="module")
def ray() -> dict[str, Any]:
    return dict(manifest("raycluster")["spec"])


def pods(ray: dict[str, Any]) -> list[dict[str, Any]]:
    return [group["template"]["spec"] for group in (ray["headGroupSpec"], *ray["workerGroupSpecs"])]


def test_the_head_is_found_at_the_name_that_its_service_has(cluster: ClusterSpec) -> None:
    name = manifest("raycluster")["metadata"]["name"]
    assert isinstance(cluster.ray, OtherRay)
    assert cluster.ray.address == f"{name}-head-svc:6379"
    assert cluster.listens == "machine"


def test_each_group_has_pods_that_its_processes_fit_into(
    cluster: ClusterSpec, ray: dict[str, Any]
) -> None:
    workers = {group["groupName"]: group for group in ray["workerGroupSpecs"]}
    for group in (*cluster.nodes, cluster.routers):
        worker = workers.pop(group.name)
        has = json.loads(json.loads(worker["rayStartParams"]["resources"]))
        assert has == group.resources.named
        (container,) = worker["template"]["spec"]["containers"]
        assert float(container["resources"]["limits"]["cpu"]) >= group.resources.cpus
        assert container["ports"] == [{"name": "http", "containerPort": group.port}]
        assert worker["maxReplicas"] == len(group.ports)
        assert worker["minReplicas"] <= worker["replicas"] <= worker["maxReplicas"]
    assert not workers
    assert ray["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"


def test_all_pods_have_the_file_and_the_keys_where_the_file_says(
    cluster: ClusterSpec, ray: dict[str, Any]
) -> None:
    assert manifest("kustomization")["configMapGenerator"] == [
        {"name": "quire-cluster", "files": ["cluster.yaml"]}
    ]
    keys_file = "--api-keys-file=/etc/quire-keys/keys.toml"
    assert all(keys_file in group.arguments for group in (*cluster.nodes, cluster.routers))
    for pod in pods(ray):
        sources = {volume["name"]: volume for volume in pod["volumes"]}
        (container,) = pod["containers"]
        mounted = {one["mountPath"]: sources[one["name"]] for one in container["volumeMounts"]}
        assert mounted[IN_POD]["configMap"] == {"name": "quire-cluster"}
        assert mounted["/etc/quire-keys"]["secret"] == {"secretName": "quire-keys"}


def test_keys_outlive_the_head(ray: dict[str, Any]) -> None:
    head = pods(ray)[0]
    state = manifest("state")["metadata"]["name"]
    volumes = {volume["name"]: volume for volume in head["volumes"]}
    assert volumes["state"]["persistentVolumeClaim"] == {"claimName": state}
    mounted = {one["name"]: one["mountPath"] for one in head["containers"][0]["volumeMounts"]}
    assert mounted["state"].endswith("/.local/state/quire")


def test_clients_reach_the_router(cluster: ClusterSpec) -> None:
    service = manifest("service")["spec"]
    assert service["selector"] == {
        "ray.io/cluster": manifest("raycluster")["metadata"]["name"],
        "ray.io/group": cluster.routers.name,
    }
    assert [port["targetPort"] for port in service["ports"]] == [cluster.routers.port]


def test_ray_asks_for_a_token_and_is_the_release_that_is_tested(ray: dict[str, Any]) -> None:
    assert ray["authOptions"] == {"mode": "token", "secretName": "quire-ray-token"}
    lock = (ROOT / "requirements-ray.lock").read_text("utf-8").splitlines()
    assert f"ray=={ray['rayVersion']}" in lock
    assert f"FROM rayproject/ray:{ray['rayVersion']}-py311" in (FOLDER / "Dockerfile").read_text()


def test_kubernetes_accepts_them(ray: dict[str, Any]) -> None:
    pytest.importorskip("kubernetes_validate", reason="the schemas come with 'make test-ray'")
    validate = import_module("kubernetes_validate").validate
    for name in ("service", "state"):
        validate(manifest(name), "1.33", strict=True)
    for number, spec in enumerate(pods(ray)):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"pod-{number}"}}
        validate(pod | {"spec": spec}, "1.33", strict=True)
