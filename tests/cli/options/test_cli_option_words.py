"""What is refused is called as the user typed it: by its option, not by the field that it sets."""

from __future__ import annotations

import pytest
import typer
from cli_invoke import invoke

from quire.cli.options.sizes import size_or_nothing, size_value
from quire.cli.options.words import in_options

OPTIONS = {
    "kv_cache_bytes": "--kv-cache-bytes",
    "max_pause": "--max-pause",
    "device": "--device",
    "data_host": "--data-host",
}


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("kv_cache_bytes is 8: raise it", "--kv-cache-bytes is 8: raise it"),
        ("lower kv_cache_bytes or x_y", "lower --kv-cache-bytes or x_y"),
        ("(kv_cache_bytes), kv_cache_bytes.", "(--kv-cache-bytes), kv_cache_bytes."),
        ("/data/kv_cache_bytes/a 'kv_cache_bytes'", "/data/kv_cache_bytes/a 'kv_cache_bytes'"),
        ("pausing.max_s is 0", "--max-pause is 0"),
        ("pausing.above is 2", "pausing.above is 2"),  # not of this command
        ("data_address is tcp://x:0", "--data-host is tcp://x:0"),
        ("device is 'gpu'", "--device is 'gpu'"),
        ("device 'cuda' cannot", "--device 'cuda' cannot"),
        ("4 device blocks on a device", "4 device blocks on a device"),
    ],
)
def test_fields_are_called_as_their_options(message: str, shown: str) -> None:
    assert in_options(message, OPTIONS) == shown


def test_a_command_without_options_changes_nothing() -> None:
    assert in_options("kv_cache_bytes is 8", {}) == "kv_cache_bytes is 8"


def test_nothing_is_a_size_where_a_cache_may_be_left_out() -> None:
    assert [size_or_nothing(value) for value in (0, "0", "1KiB")] == [0, 0, 1024]
    for wrong in ("0MiB", "banana"):
        with pytest.raises(typer.BadParameter, match="is not a size"):
            size_or_nothing(wrong)
    with pytest.raises(typer.BadParameter, match="'0' is not a size"):
        size_value("0")


@pytest.mark.parametrize(
    "given",
    [
        "--kv-cache-bytes banana",
        "--host-cache-bytes 1XB",
        "--max-body-bytes 0",
        "--kept-query-bytes x",
        "--max-upload-bytes x",
        "--disk-cache-bytes 1GiB",
        "--disk-cache-dir nowhere --disk-cache-bytes 1GiB",
        "--pause-above 1.5",
        "--resume-below 0.99 --pause-above 0.5",
        "--max-pause 0",
        "--max-hold -1",
        "--policy-thresholds 3,2 --policy mlfq",
        "--policy-quanta 3 --policy mlfq",
        "--policy-quanta 0,0,0,0,0 --policy mlfq",
        "--policy-beta -2 --policy mlfq",
        "--replicas 100",
        "--encoder-instances 2",
        "--kv-transport nixl",
        "--session-ttl 100000000",
        "--model-name=",
        "--api-keys-file nowhere",
        "--mcp-servers nowhere",
        "--profile nowhere",
        "--cluster-key-file nowhere",
        "--port 99999",
        "--page-size 65",
        "--policy best",
    ],
)
def test_every_refusal_names_the_option(capsys: pytest.CaptureFixture[str], given: str) -> None:
    ran = invoke(capsys, "serve", *given.split())
    option = given.partition(" ")[0].removesuffix("=")
    assert ran.code == 2
    assert option in ran.err, ran.err


def test_a_missing_directory_of_the_disk_tier_is_refused_before_engines_start(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ran = invoke(capsys, "serve", "--disk-cache-dir", "nowhere", "--disk-cache-bytes", "1GiB")
    assert ran.code == 2
    assert "--disk-cache-dir nowhere: there is no such directory" in ran.err
    assert "loading" not in ran.err
