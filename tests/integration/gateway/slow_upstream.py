"""An OpenAI-compatible server that answers everything after a constant time, with any number of choices. Run by test_load.

    slow_upstream.py SECONDS

Prints its port. As light as can be: load is to be felt by the gateway. Also a reranking scorer (TEI's) under `/rerank`, whose
scores are the planted value; every tenth call of it fails with an error text that embeds that value.
"""

from __future__ import annotations

import asyncio
import json
import sys

PLANTED = 0.7390851332151607
SCORER_CALLS = 0


def completion(body: dict[str, object]) -> bytes:
    count = body.get("n", 1)
    assert isinstance(count, int)
    choices = [
        {"index": place, "message": {"role": "assistant", "content": f"answer {place}"}, "finish_reason": "stop"} for place in range(count)
    ]
    usage = {"prompt_tokens": 5, "completion_tokens": 2 * count, "total_tokens": 5 + 2 * count}
    return json.dumps({"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": choices, "usage": usage}).encode()


def scores(body: dict[str, object]) -> tuple[int, bytes]:
    global SCORER_CALLS
    SCORER_CALLS += 1
    texts = body["texts"]
    assert isinstance(texts, list)
    if SCORER_CALLS % 10 == 0:
        return 500, json.dumps({"error": f"the score {PLANTED} is not what it should be"}).encode()
    return 200, json.dumps([{"index": place, "score": PLANTED} for place in range(len(texts))]).encode()


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
            body = json.loads(await reader.readexactly(length))
            if b"/rerank" in head.partition(b"\r\n")[0]:
                status, content = scores(body)
            else:
                await asyncio.sleep(SECONDS)
                status, content = 200, completion(body)
            writer.write(
                b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (status, len(content)) + content
            )
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def main() -> None:
    server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    SECONDS = float(sys.argv[1])
    asyncio.run(main())
