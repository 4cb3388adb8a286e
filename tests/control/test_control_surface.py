"""The public surface of the control layer."""

from __future__ import annotations

from quire import control


def test_what_control_exports() -> None:
    assert control.__all__ == [
        "POLICIES",
        "Controller",
        "EncoderStatistics",
        "EngineIndex",
        "EngineStatistics",
        "HeldText",
        "IndexPlace",
        "InstanceStatistics",
        "ProcessChanges",
        "ProcessRow",
        "Statistics",
        "Wait",
        "WaitsFor",
        "prompt_keys",
        "root_key",
    ]
    assert all(hasattr(control, name) for name in control.__all__)
    assert sorted(control.POLICIES) == [
        "atlas",
        "critical_path",
        "fcfs",
        "invocation",
        "mlfq",
        "plas",
        "program_fcfs",
        "quire",
        "round_robin",
        "topology",
    ]
