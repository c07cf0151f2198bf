"""The aligner at the load that test_load puts on the gateway, without the gateway. Run by test_load.

    direct.py CLIENTS SECONDS FILE

Prints, as JSON, start and duration of all answers, and the processor time that they took together.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from pathlib import Path

from privalign.deployment import load
from privalign.types import Request


async def main(clients: int, seconds: float, file: Path) -> None:
    deployment = load(file)
    (aligner,) = deployment.serve_all(deployment.ledger(), deployment.back_ends())
    aligner.warm_up()
    answers: list[tuple[float, float]] = []
    policy = aligner.model.policy
    assert isinstance(policy, contextlib.AbstractAsyncContextManager)

    async def client(number: int) -> None:
        await asyncio.sleep(number / clients)
        while time.monotonic() < end:
            began = time.perf_counter()
            await aligner.answer(Request.of_prompt("hello"))
            answers.append((began - start, time.perf_counter() - began))

    async with policy:
        start, end, before = time.perf_counter(), time.monotonic() + seconds, time.process_time()
        await asyncio.gather(*map(client, range(clients)))
    print(json.dumps({"answers": answers, "work": time.process_time() - before}))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3])))
