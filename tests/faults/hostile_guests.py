"""Programs that mean harm, as sources that anyone may upload. Each must end, with an error or
without, and harm nobody but itself."""

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
