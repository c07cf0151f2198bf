"""Clients that ask as fast as they are answered, over plain sockets, in a process of their own. Run by test_load.

    loader.py CLIENTS SECONDS KEY URL...

Client i asks URL i mod their number. Prints JSON: for every response its status, its duration and its text. A connection that
breaks (a gateway that is killed) is counted as `broken`, and the client goes on at the next URL.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

BODY = json.dumps({"model": "aligned", "messages": [{"role": "user", "content": "hello"}]}).encode()


async def ask(host: str, port: int, key: str, streams: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> tuple[int, Any, str]:
    reader, writer = streams
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {key}\r\ncontent-type: application/json\r\n"
    writer.write(head.encode() + b"content-length: %d\r\n\r\n" % len(BODY) + BODY)
    answer = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    length = int(answer.lower().partition("content-length:")[2].partition("\r\n")[0])
    return int(answer.split(" ", 2)[1]), json.loads(await reader.readexactly(length)), answer


async def client(number: int, clients: int, end: float, key: str, urls: list[str], results: dict[str, Any]) -> None:
    await asyncio.sleep(number / clients)  # not all in step
    turn, streams = number, None
    while time.monotonic() < end:
        host, _, port = urls[turn % len(urls)].removeprefix("http://").partition(":")
        try:
            streams = streams or await asyncio.open_connection(host, int(port))
            began = time.perf_counter()
            status, document, _ = await ask(host, int(port), key, streams)
            results["responses"].append([status, time.perf_counter() - began, began - results["start"]])
            if status != 200:
                results["errors"].append(document["error"]["code"])
            if status == 429:
                return
        except (OSError, asyncio.IncompleteReadError):
            results["broken"] += 1
            turn, streams = turn + 1, None
    if streams:
        streams[1].close()


async def main(clients: int, seconds: float, key: str, urls: list[str]) -> None:
    results: dict[str, Any] = {"responses": [], "errors": [], "broken": 0, "start": time.perf_counter()}
    end = time.monotonic() + seconds
    await asyncio.gather(*(client(number, clients, end, key, urls, results) for number in range(clients)))
    print(json.dumps(results))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3], sys.argv[4:]))
