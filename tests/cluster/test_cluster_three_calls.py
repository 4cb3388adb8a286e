"""Strategies that divide a request between engines: the same answer, each token computed where it
was meant to be, no lease left."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from http_peer import refused
from router_world import World, text_of, until, world
from stand_in_node import continuation

from quire.cluster import strategies
from quire.cluster.engines import node_engine
from quire.cluster.engines.call_bodies import unread
from quire.cluster.nodes.page_tree import PageChange
from quire.cluster.requests.request import Request
from quire.cluster.routing.strategy import StrategySource

LONG = "In the beginning there was a prompt of many tokens. " * 4

DIVIDING: dict[str, tuple[int, StrategySource]] = {
    "1P1D": (2, StrategySource("disaggregated")),
    "1P2D": (3, StrategySource("disaggregated")),
    "2P1D": (3, StrategySource("disaggregated", options={"num_prefill": 2})),
    "1P alone": (1, StrategySource("disaggregated")),
    "balance 0": (2, StrategySource("balanced", options={"ratio": 0})),
    "balance 0.2": (2, StrategySource("balanced", options={"ratio": 0.2})),
    "balance 1": (2, StrategySource("balanced", options={"ratio": 1.0})),
    "balance by load": (2, StrategySource("balanced", options={"ratio": -1.0})),
    "migrating": (2, StrategySource("migrating", options={"max_extra": 0, "min_tokens": 1})),
    "quire": (3, StrategySource("quire")),
}


async def no_lease_is_left(w: World) -> None:
    await until(lambda: not any(node.leases for node in w.nodes))
    await until(lambda: not any(node.num_outstanding for node in w.router.nodes))


@pytest.mark.parametrize("name", DIVIDING)
async def test_an_answer_is_that_of_one_engine(name: str) -> None:
    num_nodes, source = DIVIDING[name]
    async with world(num_nodes, source) as w:
        prompts = ["x", LONG, LONG + "And on.", LONG[:40], "Another."]
        for stream in (False, True):
            for prompt in prompts:
                answer = await w.complete(prompt, stream=stream, max_tokens=5)
                assert text_of(answer) == continuation(prompt, 5), answer.text
        ids = [ord(character) for character in LONG]
        answer = await w.http.post("/v1/completions", json={"prompt": ids, "max_tokens": 5})
        assert text_of(answer) == continuation(LONG, 5)
        chat = await w.http.post("/v1/chat/completions", json={"messages": []})
        assert chat.json()["path"] == "/v1/chat/completions"
        await asyncio.gather(*(w.complete(f"{LONG}{turn}") for turn in range(6)))
        await no_lease_is_left(w)


async def test_prefill_and_decode_are_divided() -> None:
    async with world(2, "disaggregated") as w:
        prefill, decode = w.nodes
        await w.complete(LONG)
        assert (prefill.num_prefilled, decode.num_prefilled) == (len(LONG) - 1, 1)
        await w.complete(LONG + "And on.")
        assert [call for call, _ in decode.calls] == ["prep_recv", "start_generate"] * 2
        sent = [body for call, body in prefill.calls if call == "remote_send"]
        assert [(body["begin"], body["end"]) for body in sent] == [
            (0, len(LONG) - 1),
            (len(LONG), len(LONG) + len("And on.") - 1),
        ]


async def test_calls_tell_what_they_took_the_router() -> None:
    async with world(2, "disaggregated") as w:
        sender, receiver = w.router.fleet.engines
        body = b'{"model": "m", "prompt": "%b", "max_tokens": 2}' % LONG.encode()
        request = Request("POST", "/v1/completions", [], body, "r")
        received = await receiver.prep_recv(request, -1)
        sent = await sender.remote_send(request, received, begin=0, end=received.end)
        assert received.call_s > 0
        assert sent.call_s > 0
        request.work.end()
        await no_lease_is_left(w)


async def test_a_chat_is_divided_too() -> None:
    messages = [{"role": "user", "content": LONG}]
    rendered = len(f"<user>{LONG}<assistant>")
    async with world(2, "disaggregated") as w:
        prefill, decode = w.nodes
        answer = await w.http.post("/v1/chat/completions", json={"messages": messages})
        assert answer.json()["node"] == "node-1"
        assert (prefill.num_prefilled, decode.num_prefilled) == (rendered - 1, 1)
        await no_lease_is_left(w)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_the_answer_is_asked_for_while_the_tokens_are_on_their_way(path: str) -> None:
    body = {"prompt": LONG, "max_tokens": 4}
    if path != "/v1/completions":
        body = {"messages": [{"role": "user", "content": LONG}]}
    async with world(2, "disaggregated") as w:
        prefill, decode = w.nodes
        prefill.call_gates["remote_send"] = gate = asyncio.Event()
        task = asyncio.create_task(w.http.post(path, json=body))
        await until(lambda: decode.num_awaiting == 1)
        assert decode.num_prefilled == 0
        gate.set()
        assert (await task).status_code == 200
        assert decode.num_prefilled == 1
        await no_lease_is_left(w)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("is_killed", [True, False])
async def test_a_sender_that_dies_while_its_receiver_waits_is_done_without(
    path: str, is_killed: bool
) -> None:
    body = {"prompt": LONG, "max_tokens": 4}
    if path != "/v1/completions":
        body = {"messages": [{"role": "user", "content": LONG}]}
    async with world(2, "disaggregated") as w:
        prefill, decode = w.nodes
        gate = prefill.call_gates["remote_send"] = asyncio.Event()
        task = asyncio.create_task(w.http.post(path, json=body))
        await until(lambda: decode.num_awaiting == 1)
        if is_killed:
            await prefill.peer.die()
        else:
            prefill.call_refusals["remote_send"] = refused(503, "transfer_failed", "cut off")
            prefill.call_cuts.add("remote_send")
            gate.set()
        answer = await task
        assert answer.status_code == 200, answer.text
        rendered = LONG if path == "/v1/completions" else f"<user>{LONG}<assistant>"
        node = w.nodes[int(answer.headers["x-quire-node"][-1])]
        assert node.num_prefilled == len(rendered), "it computes all of it"
        assert node is decode or not is_killed
        await no_lease_is_left(w)


@pytest.mark.parametrize("name", ["1P1D", "balance 0.2", "migrating", "quire"])
@pytest.mark.parametrize(
    "asked", [{"prompt_logprobs": 0}, {"echo": True, "logprobs": 1}, {"prompt_logprobs": 2, "n": 2}]
)
async def test_what_asks_for_log_probabilities_of_its_prompt_goes_whole(
    name: str, asked: dict[str, object]
) -> None:
    """An engine has none of K and V that came from another one, and would refuse it."""
    num_nodes, source = DIVIDING[name]
    async with world(num_nodes, source) as w:
        await w.complete(LONG)
        w.nodes[0].calls.clear()
        w.nodes[1].calls.clear()
        body = {"prompt": LONG + "again", "max_tokens": 4, **asked}
        held = [asyncio.create_task(w.http.post("/v1/completions", json=body)) for _ in range(3)]
        assert {(await one).status_code for one in held} == {200}
        chat = {"messages": [{"role": "user", "content": LONG}], **asked}
        await w.http.post("/v1/chat/completions", json=chat)
        assert not [call for node in w.nodes for call in node.calls]


@pytest.mark.parametrize("content", [[{"type": "input_audio"}], 7])
async def test_a_chat_that_is_more_than_texts_and_images_goes_whole(content: object) -> None:
    messages = [{"role": "user", "content": content}]
    async with world(2, "disaggregated") as w:
        await w.http.post("/v1/chat/completions", json={"messages": messages})
        assert not w.nodes[0].calls + w.nodes[1].calls


async def test_what_the_decoder_has_is_not_sent() -> None:
    async with world(2, "disaggregated") as w:
        await w.complete(LONG)
        await w.complete(LONG)
        assert [call for call, _ in w.nodes[0].calls] == ["remote_send"]


async def test_a_ratio_divides_the_prompt() -> None:
    async with world(2, StrategySource("balanced", options={"ratio": 0.25})) as w:
        await w.complete("x" * 200)
        assert [node.num_prefilled for node in w.nodes] == [150, 50]


async def test_fields_of_the_completion_reach_start_generate_and_its_prompts_the_others() -> None:
    async with world(2, "disaggregated") as w:
        await w.complete(LONG, cache_salt="s", seed=3, priority=2, model="stand-in")
        bodies = {call: body for node in w.nodes for call, body in node.calls}
        for call in ("prep_recv", "remote_send", "start_generate"):
            body = bodies[call]
            assert (body["model"], body["cache_salt"], body["priority"]) == ("stand-in", "s", 2)
        assert bodies["start_generate"]["seed"] == 3
        assert "seed" not in bodies["prep_recv"]


@pytest.mark.parametrize("asked", [{"truncate_prompt_tokens": 20}, {"documents": [{"text": "a"}]}])
async def test_a_prompt_that_the_calls_cannot_tell_goes_whole(asked: dict[str, object]) -> None:
    messages = [{"role": "user", "content": LONG}]
    async with world(2, "disaggregated") as w:
        await w.http.post("/v1/chat/completions", json={"messages": messages, **asked})
        await w.http.post("/v1/completions", json={"prompt": LONG, "max_tokens": 4, **asked})
        assert not w.nodes[0].calls + w.nodes[1].calls


def test_the_calls_tell_what_a_template_sees_of_a_chat() -> None:
    fields = {
        "messages": [{"role": "user", "content": LONG}],
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "tool_choice": "none",
        "reasoning_effort": "low",
        "verbosity": None,
        "add_special_tokens": True,
        "chat_template_kwargs": {"a": 1},
    }
    request = Request("POST", "/v1/chat/completions", [], msgspec.json.encode(fields), "r")
    assert unread(request) == {
        "messages": fields["messages"],
        "add_special_tokens": True,
        "chat_template_kwargs": {"a": 1, "reasoning_effort": "low"},
    }


SALTED = """
async def route(request, engines):
    if "cache_salt" in request.fields:
        first = engines[0]
        found = await first.locate(request), await first.pin(request, 1.0, 9.0)
        if found != (None, 0):
            raise ValueError(f"a salted prompt is located, or has a price: {found}")
    return await engines[0].send(request)
"""


async def test_a_salted_prompt_is_located_nowhere_and_has_no_price() -> None:
    async with world(1, StrategySource("route", SALTED)) as w:
        w.router.pages.apply("node-0", PageChange("trial", 0, None, 0, range(4), ()))
        answer = await w.complete(LONG, cache_salt="s", max_tokens=5)
        assert text_of(answer) == continuation(LONG, 5)
        assert not w.nodes[0].calls


async def test_a_context_moves_to_an_engine_that_has_time() -> None:
    source = StrategySource("migrating", options={"max_extra": 0, "min_tokens": 1})
    async with world(2, source) as w:
        first, second = w.nodes
        await w.complete(LONG + "one")
        first.tokens = asyncio.Semaphore(0)
        holding = asyncio.create_task(w.complete(LONG + "two", stream=True))  # at its holder
        await until(lambda: w.router.nodes[0].num_outstanding == 1)
        answer = await w.complete(LONG + "three")
        assert answer.headers["x-quire-node"] == "node-1"
        assert text_of(answer) == continuation(LONG + "three", 4)
        assert second.num_prefilled < 64 + len("three")  # the last block of the tree, and the new
        first.tokens.release()
        for _ in range(4):
            first.tokens.release()
        await holding


async def test_a_receiver_without_room_answers_alone() -> None:
    async with world(2, "disaggregated") as w:
        w.nodes[1].call_refusals["prep_recv"] = refused(503, "pool_exhausted", "full")
        assert text_of(await w.complete(LONG)) == continuation(LONG, 4)
        assert not w.nodes[0].calls


@pytest.mark.parametrize("call", ["prep_recv", "remote_send", "start_generate"])
async def test_a_call_that_loses_its_engine_is_made_elsewhere(call: str) -> None:
    async with world(3, "disaggregated") as w:
        w.nodes[1 if call != "remote_send" else 0].call_cuts.add(call)
        assert text_of(await w.complete(LONG)) == continuation(LONG, 4)
        for node in w.nodes:
            node.call_cuts.clear()
        await until(lambda: not any(w.nodes[at].leases for at in (0, 2)))


@pytest.mark.parametrize("call", ["prep_recv", "remote_send", "start_generate"])
async def test_a_refused_call_is_the_answer_and_leaves_no_lease(call: str) -> None:
    async with world(2, "disaggregated") as w:
        for node in w.nodes:
            node.call_refusals[call] = refused(400, "invalid_argument", "because")
        answer = await w.complete(LONG)
        assert answer.status_code == 400
        assert "because" in answer.json()["error"]["message"]
        await no_lease_is_left(w)


@pytest.mark.parametrize(
    ("call", "status", "code"),
    [
        ("remote_send", 503, "transfer_failed"),  # the receiver was lost, or the link to it
        ("remote_send", 404, "unknown_handle"),  # its engine began anew, and knows no such lease
        ("start_generate", 404, "unknown_handle"),
    ],
)
async def test_without_its_pages_one_engine_answers_alone(
    call: str, status: int, code: str
) -> None:
    async with world(2, "disaggregated") as w:
        for node in w.nodes:
            node.call_refusals[call] = refused(status, code, "because")
        assert text_of(await w.complete(LONG)) == continuation(LONG, 4)
        assert len([one for node in w.nodes for one in node.asked]) == 1
        await no_lease_is_left(w)


async def test_a_node_whose_engine_is_lost_is_left_out() -> None:
    async with world(3, "disaggregated") as w:
        w.nodes[0].call_refusals["remote_send"] = refused(503, "engine_lost", "killed")
        assert text_of(await w.complete(LONG)) == continuation(LONG, 4)
        assert w.nodes[0].num_prefilled == 0
        await no_lease_is_left(w)


async def test_a_model_that_the_receiver_does_not_have_is_the_answer() -> None:
    async with world(2, "disaggregated") as w:
        gone = refused(404, "model_not_found", "no such model")
        w.nodes[1].call_refusals["start_generate"] = gone
        answer = await w.complete(LONG)
        assert answer.status_code == 404
        assert "no such model" in answer.json()["error"]["message"]
        await no_lease_is_left(w)


async def test_a_client_that_leaves_during_a_transfer_leaves_no_lease() -> None:
    async with world(2, "disaggregated") as w:
        prefill, decode = w.nodes
        prefill.call_gates["remote_send"] = asyncio.Event()
        task = asyncio.create_task(w.complete(LONG))
        await prefill.has_been_called.wait()
        assert decode.leases
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await no_lease_is_left(w)
        assert ("leases") in [call for call, _ in decode.calls]


@pytest.mark.parametrize(("key", "said"), [(None, "--cluster-key-file"), ("other", "cluster key")])
async def test_without_the_cluster_key_the_remedy_is_named(key: str | None, said: str) -> None:
    async with world(2, "disaggregated", cluster_key=key) as w:
        answer = await w.complete(LONG)
        assert answer.status_code >= 400
        assert said in answer.json()["error"]["message"]
        assert (await w.http.post("/v1/chat/completions", json={})).status_code == 200


async def test_a_session_decodes_at_its_home() -> None:
    async with world(4, "disaggregated") as w:
        for number in range(8):
            headers = {"x-session-id": f"s{number}"}
            places = {
                (await w.complete(f"{LONG}{turn}", headers=headers)).headers["x-quire-node"]
                for turn in range(3)
            }
            assert len(places - {"node-0"}) == 1


def test_strategies_are_short() -> None:
    """The paper's are 350 lines in all, without what ``quire`` and shares by load add to them."""
    ours = {"quire.py", "computing.py", "sharing.py"}
    folder = Path(str(strategies.__file__)).parent
    files = [file for file in folder.glob("*.py") if file.name not in ours]
    lines = [line for file in files for line in file.read_text("utf-8").splitlines()]
    assert len([line for line in lines if line.strip()]) <= 350


async def test_what_a_call_takes_is_told_to_the_strategy(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter((10.0, 10.25))
    monkeypatch.setattr(node_engine, "_now_s", lambda: next(times))
    body = msgspec.json.encode({"prompt": "Once upon a time", "max_tokens": 4})
    request = Request("POST", "/v1/completions", [], body, "r")
    async with world(1) as w:
        (engine,) = w.router.fleet.engines
        received = await engine.prep_recv(request, 4)
        assert received.call_s == 0.25
        request.work.end()
        await until(lambda: not w.nodes[0].leases)
