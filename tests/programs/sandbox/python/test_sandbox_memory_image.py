"""The image of Python guests: its listed objects are made immortal, nothing else changes."""

from __future__ import annotations

import struct
import subprocess
import sys
from array import array

import pytest

from quire.core.errors import ConfigError
from quire.programs.sandbox.python.guest import image as guest_image
from quire.programs.sandbox.python.guest.image import listed, mark
from quire.programs.sandbox.python.memory_image import with_immortal_objects
from quire.programs.sandbox.wasm.engine import load_wasmtime

IMMORTAL = 5 << 28
CORE_HEADER = b"\0asm\x01\0\0\0"
COMPONENT_HEADER = b"\0asm\x0d\0\x01\0"
MEMORY_BYTES = 1 << 16


def leb(number: int, *, signed: bool = False) -> bytes:
    """LEB128 by its definition: seven bits a byte, the last one without its highest bit."""
    bits = max(1, number.bit_length() + signed)
    groups = [number >> 7 * place & 0x7F for place in range(-(-bits // 7))]
    return bytes([group | 0x80 for group in groups[:-1]] + groups[-1:])


def section(kind: int, content: bytes) -> bytes:
    return bytes([kind]) + leb(len(content)) + content


def segment(address: int, content: bytes, kind: int = 0) -> bytes:
    if kind == 1:  # passive
        return leb(1) + leb(len(content)) + content
    place = b"\x41" + leb(address, signed=True) + b"\x0b"
    return leb(kind) + place + leb(len(content)) + content


def core_module(*segments: bytes) -> bytes:
    """A module with a memory that it exports, a data count, and these segments."""
    return (
        CORE_HEADER
        + section(5, b"\x01\x00\x01")
        + section(7, b"\x01" + leb(6) + b"memory" + b"\x02\x00")
        + section(12, leb(len(segments)))
        + section(11, leb(len(segments)) + b"".join(segments))
    )


def component(*modules: bytes) -> bytes:
    return COMPONENT_HEADER + b"".join(section(1, module) for module in modules)


def modules_of(built: bytes) -> list[bytes]:
    found, at = [], 8
    while at < len(built):
        assert built[at] == 1
        size = shift = 0
        at += 1
        while True:
            byte = built[at]
            size |= (byte & 0x7F) << shift
            shift, at = shift + 7, at + 1
            if byte < 0x80:
                break
        found.append(built[at : at + size])
        at += size
    return found


def memory_of(module: bytes) -> bytes:
    """As wasmtime makes it."""
    wasmtime = load_wasmtime()
    store = wasmtime.Store()
    instance = wasmtime.Instance(store, wasmtime.Module(store.engine, module), [])
    return bytes(instance.exports(store)["memory"].read(store, 0, MEMORY_BYTES))


def listing(*addresses: int) -> bytes:
    return (
        mark() + struct.pack(f"<II{len(addresses)}I", len(addresses), IMMORTAL, *addresses) + mark()
    )


def count_at(memory: bytes, address: int) -> int:
    count: int = struct.unpack_from("<I", memory, address)[0]
    return count


OBJECTS = struct.pack("<IIIIII", 3, 77, 7 << 28, 88, 1, 99)
"""Three objects of a count and a type; the second one is immortal already."""


def test_the_counts_of_listed_objects_become_immortal_and_all_else_stays() -> None:
    data = (segment(1000, OBJECTS), segment(2000, b"beside"), segment(3000, listing(1000, 1008)))
    before = memory_of(core_module(*data))
    (module,) = modules_of(with_immortal_objects(component(core_module(*data))))
    after = memory_of(module)
    assert count_at(after, 1000) == IMMORTAL
    assert count_at(after, 1008) == 7 << 28
    assert count_at(after, 1016) == 1, "it was not listed"
    assert after[:1000] == before[:1000]
    assert after[1004:] == before[1004:]


def test_a_count_may_lie_across_two_segments() -> None:
    """A builder leaves out zeros: 256 has one in its lowest byte."""
    data = (segment(1000, b"xx"), segment(1009, b"\x01\0\0\x09"), segment(3000, listing(1008)))
    (module,) = modules_of(with_immortal_objects(component(core_module(*data))))
    assert count_at(memory_of(module), 1008) == IMMORTAL


def test_memory_is_one_segment_afterwards_so_that_it_can_be_mapped() -> None:
    data = (segment(1000, OBJECTS), segment(60_000, listing(1000)))
    (module,) = modules_of(with_immortal_objects(component(core_module(*data))))
    assert section(12, leb(1)) in module


def test_other_modules_of_the_component_stay_as_they_are() -> None:
    others = core_module(segment(8, b"first")), core_module(segment(8, mark(), kind=1))
    made = with_immortal_objects(
        component(others[0], core_module(segment(1000, OBJECTS + listing(1000))), others[1])
    )
    assert [one in others for one in modules_of(made)] == [True, False, True]


def test_the_mark_alone_is_no_listing() -> None:
    """The bytes of the mark stand in memory where it was made, too."""
    data = (segment(500, mark() + bytes(8)), segment(1000, OBJECTS), segment(3000, listing(1000)))
    (module,) = modules_of(with_immortal_objects(component(core_module(*data))))
    assert count_at(memory_of(module), 1000) == IMMORTAL


@pytest.mark.parametrize(
    "module",
    [
        core_module(segment(1000, OBJECTS)),
        core_module(segment(1000, listing(1000)[:-1])),
        core_module(segment(1000, OBJECTS), segment(0, listing(1000), kind=1)),
    ],
    ids=["no listing", "half a listing", "data that is not there from the start"],
)
def test_a_component_without_a_listing_is_refused(module: bytes) -> None:
    with pytest.raises(ConfigError):
        with_immortal_objects(component(module))


# -- the guest's part ------------------------------------------------------------------------------


SEARCH = """
import sys
from quire.programs.sandbox.python.guest.image import reachable

class Held:
    kept = {" ".join(["a key that", "only this dict holds"]): ["a value"]}

    def method(self):
        return "a constant of the method"

found = reachable()
numbers = {id(one) for one in found}
assert len(numbers) == len(found), "an object was found twice"
assert not any(one is found for one in found), "the search found its own list"
code, (key,) = Held.method.__code__, Held.kept
for one in (Held, Held.method, code, code.co_consts, *code.co_consts, code.co_linetable, key,
            Held.kept[key], vars(dict)["fromkeys"], sys.modules):
    assert id(one) in numbers, one
print(len(found))
"""


def test_what_code_and_dicts_and_types_hold_is_found_once_and_nothing_of_the_search() -> None:
    """In an interpreter of its own: the one of the tests holds millions of objects."""
    done = subprocess.run([sys.executable, "-c", SEARCH], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 10_000


def test_a_listing_names_each_object_between_two_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(guest_image.IMMORTAL_COUNTS, sys.version_info[:2], IMMORTAL)
    monkeypatch.setattr(guest_image, "id", lambda one: one, raising=False)
    assert listed([1000, 1008]) == array("I", listing(1000, 1008))
