"""Which placement groups processes need."""

from __future__ import annotations

from small_processes import spec

from quire.cluster.deployment.placing import Places, missing_places, parse_places, place_of

NODES = [spec("node-0"), spec("node-1"), spec("big-0", cpus=4.0, gpus=2.0, placement="pack")]
ONE_CPU = {"CPU": 1.0}


def test_a_group_is_placed_together_and_a_process_is_one_bundle() -> None:
    spread, packed = missing_places(NODES, [])
    assert spread == Places("node", "spread", ONE_CPU, (0, 1))
    assert packed.strategy == "pack"
    assert packed.bundle == {"CPU": 4.0, "GPU": 2.0}  # all ranks of its engine, on one machine


def test_names_tell_what_they_hold() -> None:
    for places in missing_places(NODES, []):
        assert parse_places(places.name) == places
    for name in ("", "mine", "a/b/c/d", "a/b/c/d/e", "node/spread/CPU=1.0/", "node/spread/CPU/0"):
        assert parse_places(name) is None


def test_who_has_a_place_needs_no_other() -> None:
    present = missing_places(NODES, [])
    assert missing_places(NODES, present) == []
    assert place_of(NODES[1], present) == (present[0], 1)
    added = [*NODES, spec("node-2")]
    assert missing_places(added, present) == [Places("node", "spread", ONE_CPU, (2,))]


def test_other_resources_are_another_place() -> None:
    present = missing_places(NODES, [])
    larger = spec("node-0", cpus=2.0)
    assert not present[0].holds(larger)
    assert missing_places([larger], present) == [Places("node", "spread", {"CPU": 2.0}, (0,))]


def test_resources_by_name_are_part_of_the_place() -> None:
    fast = spec("node-0", resources={"accelerator_type:A100": 0.01, "disk": 1.0})
    (places,) = missing_places([fast, spec("node-1", resources={"disk": 1.0})], [])[:1]
    assert places.bundle == {"CPU": 1.0, "accelerator_type:A100": 0.01, "disk": 1.0}
    assert places.indexes == (0,)
    assert parse_places(places.name) == places
    assert places.holds(fast)
    assert not places.holds(spec("node-0"))


def test_one_that_may_go_before_the_others_has_a_place_of_its_own() -> None:
    specs = [spec("node-0"), *(spec(f"node-{n}", is_alone=True) for n in (1, 2))]
    assert [places.indexes for places in missing_places(specs, [])] == [(0,), (1,), (2,)]
