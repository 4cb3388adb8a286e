"""What clients bring that mean harm: programs, as sources that anyone may upload, and grammars.

Each program must end, with an error or without, and harm nobody but itself; a grammar is refused.
"""

from __future__ import annotations

_HEAD = "import asyncio\nfrom quire.programs.sdk import Context, inferlet\n\n"

_BODIES = {
    "computes without end": "while True:\n        pass",
    "sleeps and never reads": "await asyncio.sleep(0.2)\n    return 1",
    "takes all memory": "kept = []\n    while True:\n        kept.append(bytearray(1 << 20))",
    "calls itself": "f = lambda: f()\n    f()",
    "returns what is too deep": "v = 1\n    for _ in range(250):\n        v = [v]\n    return v",
    "returns a name that is none": "return {chr(0xD800): 1}",
    "leaves when it is shown": (
        "class Leaving(Exception):\n"
        "        def __str__(self):\n"
        "            raise SystemExit(1)\n"
        "    raise Leaving"
    ),
    "prints without end": "while True:\n        print('x' * 10_000)",
    "sends without end": "while True:\n        await api.send('x' * 1000)",
    "tokenizes too much": (
        "queue = api.create_queue(api.available_models()[0])\n"
        "    return len(await api.tokenize(queue, 'a ' * (1 << 20)))"
    ),
    "reaches for the neighbours": (
        "return (await api.http_get('http://169.254.169.254/latest/')).status"
    ),
    "frames two messages as one": (
        "await api.http_post('http://127.0.0.1/', 'x', headers={'transfer-encoding': 'chunked'})"
    ),
    "has many children": (
        "return [await api.launch('text_completion', ['Hi']) for _ in range(40)]"
    ),
    "leaves its tasks behind": (
        "for _ in range(200):\n        asyncio.create_task(asyncio.sleep(3600))\n    return 1"
    ),
    "holds pages and fails": (
        "context = Context(api).fill('one two three ' * 20)\n"
        "    await context.prefill()\n"
        "    forks = [context.fork() for _ in range(8)]\n"
        "    raise ValueError(len(forks))"
    ),
}

HOSTILE = {
    name: f"{_HEAD}@inferlet(hosts=['*'])\nasync def main(api):\n    {body}\n"
    for name, body in _BODIES.items()
}

PATIENT = _HEAD + (
    "@inferlet()\nasync def main(api):\n    while True:\n        await asyncio.sleep(0.05)\n"
)
"""It harms nobody, and runs until it is ended."""

KEEPS = _HEAD + (
    "@inferlet(stores=['chaos'])\n"
    "async def main(api, mode, size='0'):\n"
    "    if mode == 'fill':\n"
    "        for number in range(12):\n"
    "            await api.blob_put(f'b{number}', bytes(int(size)), store='chaos')\n"
    "        return 12\n"
    "    if mode == 'clear':\n"
    "        return sum([await api.blob_delete(f'b{n}', store='chaos') for n in range(12)])\n"
    "    if mode == 'write':\n"
    "        await api.store_put('kept', size, store='chaos')\n"
    "    return await api.store_get('kept', store='chaos')\n"
)
"""It stores, deletes, writes one value and reads it."""

FORKS = _HEAD + (
    "@inferlet(restartable=True)\n"
    "async def main(api, name):\n"
    "    context = Context(api).fill(f'hello {name}, a small ')\n"
    "    said = []\n"
    "    for _ in range(6):\n"
    "        await context.prefill()\n"
    "        forks = [context.fork().fill(f'{n}:') for n in range(4)]\n"
    "        said += await asyncio.gather(\n"
    "            *[fork.generate_until(max_tokens=6, ignore_eos=True) for fork in forks]\n"
    "        )\n"
    "        context.join(*forks[:2])\n"
    "        for fork in forks[2:]:\n"
    "            fork.drop()\n"
    "    return said\n"
)
"""Four forks a round, two of them joined; what it returns depends on its name alone."""

_RULES = (
    f"r{i}: " + " | ".join(f"r{j}" for j in range(i + 1, min(i + 40, 398))) for i in range(397)
)
_MANY_ITEMS = {
    "type": "array",
    "prefixItems": [{"type": "integer", "multipleOf": 1009 + i} for i in range(500)],
}
_PATTERNS = {"allOf": [{"type": "string", "pattern": f"x{i}"} for i in range(100)]}

COSTLY_GRAMMARS = {
    "many items": {"structured_outputs": {"json": _MANY_ITEMS}},
    "many patterns": {"structured_outputs": {"json": _PATTERNS}},
    "many rules": {
        "structured_outputs": {"grammar": "\n".join(["start: r0", *_RULES, 'r397: "a"'])}
    },
}
"""Fields of a request whose grammar would take from ten seconds to minutes, and up to gigabytes."""
