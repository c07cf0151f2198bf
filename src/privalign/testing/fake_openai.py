"""A strict OpenAI-compatible server on loopback, over real sockets, that fails in every way that it is told to.

`replies` is what happens to the next requests, one element each: the name of a method of `_Handler`, with its arguments.
When it is empty, requests are answered properly. Answers depend on the seed alone, where there is one.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODEL = "strict-1"
KNOWN = {
    *("model", "messages", "n", "temperature", "top_p", "stop", "max_tokens", "max_completion_tokens", "response_format", "tools"),
    *("tool_choice", "seed", "logit_bias", "presence_penalty", "frequency_penalty", "user", "logprobs", "top_logprobs"),
}


class FakeOpenAI:
    """The server; `n_rule`: "honoured", "ignored", "refused", or "at most 4" (refused above, as llama.cpp does)."""

    def __init__(self, n_rule: str = "honoured", api_key: str | None = None, delay: float = 0.0, llama: bool = False) -> None:
        self.n_rule = n_rule
        self.api_key = api_key
        self.delay = delay
        self.llama = llama
        self.replies: deque[tuple[Any, ...]] = deque()
        self.bodies: list[dict[str, Any]] = []
        self.times: list[float] = []
        self.most_at_once = 0
        self.at_once = 0
        self.lock = threading.Lock()
        fake = self

        class Handler(_Handler):
            server_state = fake

        self._http = _Http(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    @contextmanager
    def running(self) -> Iterator[FakeOpenAI]:
        thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._http.shutdown()
            self._http.server_close()
            thread.join()

    @property
    def sizes(self) -> list[int]:
        """n of every request so far."""
        return [body.get("n", 1) for body in self.bodies]


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128  # the default of 5 makes a fan-out wait a second for its connections


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_state: FakeOpenAI

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_POST(self) -> None:
        state = self.server_state
        raw = self.rfile.read(int(self.headers["Content-Length"]))
        with state.lock:
            state.at_once += 1
            state.most_at_once = max(state.most_at_once, state.at_once)
            state.times.append(time.monotonic())
            state.bodies.append(json.loads(raw))
            reply = state.replies.popleft() if state.replies else ("proper",)
            body = state.bodies[-1]
        try:
            time.sleep(state.delay)
            getattr(self, reply[0])(body, *reply[1:])
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the client gave up
        finally:
            with state.lock:
                state.at_once -= 1

    # ---- what can happen

    def proper(self, body: dict[str, Any]) -> None:
        refusal = self._refusal(body)
        if refusal:
            self.status(body, refusal[0], {"error": {"message": refusal[1], "type": "invalid_request_error", "param": None, "code": None}})
        else:
            self.status(body, 200, self._completion(body, 1 if self.server_state.n_rule == "ignored" else body.get("n", 1)))

    def status(self, body: dict[str, Any], status: int, document: Any = None, headers: dict[str, str] | None = None) -> None:
        content = document if isinstance(document, bytes) else json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def some(self, body: dict[str, Any], count: int) -> None:
        """`count` choices, however many were asked for."""
        self.status(body, 200, self._completion(body, count))

    def holes(self, body: dict[str, Any], *places: int) -> None:
        """As many choices as asked for, with errors at these places, and in reverse order."""
        document = self._completion(body, body.get("n", 1))
        for place in places:
            document["choices"][place] = {"index": place, "message": None, "finish_reason": "error", "error": {"message": "shard lost"}}
        document["choices"].reverse()
        self.status(body, 200, document)

    def reset(self, body: dict[str, Any]) -> None:
        """Half a body, then a reset."""
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        self.wfile.write(b'{"choices": [{"index": 0, "mess')
        self.wfile.flush()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.shutdown(socket.SHUT_RD)
        self.close_connection = True

    def cut(self, body: dict[str, Any]) -> None:
        """Half a body, then a proper end of the connection."""
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        self.wfile.write(b'{"choices": [{"index": 0, "mess')
        self.close_connection = True

    def truncated(self, body: dict[str, Any]) -> None:
        """A whole body whose JSON is not."""
        whole = json.dumps(self._completion(body, 1)).encode()
        self.status(body, 200, whole[: len(whole) // 2])

    def drip(self, body: dict[str, Any], pause: float) -> None:
        """A byte now and then: no single read times out."""
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        for _ in range(1000):
            self.wfile.write(b" ")
            self.wfile.flush()
            time.sleep(pause)

    def hang(self, body: dict[str, Any], seconds: float) -> None:
        time.sleep(seconds)
        self.close_connection = True

    def echo_key(self, body: dict[str, Any], status: int) -> None:
        self.status(body, status, {"error": {"message": f"Incorrect API key provided: {self.headers['Authorization']}\nsee docs"}})

    # ---- the proper answer

    def _refusal(self, body: dict[str, Any]) -> tuple[int, str] | None:
        state = self.server_state
        if state.api_key and self.headers["Authorization"] != f"Bearer {state.api_key}":
            return 401, "Incorrect API key provided"
        if self.path != "/v1/chat/completions" or body.get("model") != MODEL:
            return 404, f"The model `{body.get('model')}` does not exist"
        unknown = body.keys() - KNOWN
        if unknown:
            return 400, f"Unrecognized request argument supplied: {sorted(unknown)[0]}"
        n = body.get("n", 1)
        if type(n) is not int or n < 1:
            return 400, "n must be a whole number of at least 1"
        if (state.n_rule == "refused" and "n" in body) or (state.n_rule == "at most 4" and n > 4):
            return 400, f"Field 'n': Value must be between 1 <= value <= 4, but got {n}"
        if not isinstance(body.get("temperature", 1.0), int | float) or not 0 <= body.get("temperature", 1.0) <= 2:
            return 400, f"temperature: {body['temperature']} is not from 0 to 2"
        if not body.get("messages") or not all(isinstance(turn.get("role"), str) and "content" in turn for turn in body["messages"]):
            return 400, "messages: malformed"
        if "top_logprobs" in body and not body.get("logprobs"):
            return 400, "top_logprobs needs logprobs"
        return None

    def _completion(self, body: dict[str, Any], n: int) -> dict[str, Any]:
        choices = [self._choice(body, index) for index in range(n)]
        tokens = [choice.pop("tokens") for choice in choices]
        llama = self.server_state.llama
        return {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1,
            "model": MODEL,
            "choices": choices,
            "usage": {
                "prompt_tokens": 10,
                "completion_tokens": tokens[0] if llama else sum(tokens),
                "total_tokens": 10 + (tokens[0] if llama else sum(tokens)),
            },
            **({"timings": {"predicted_n": tokens[0]}} if llama else {}),
        }

    def _choice(self, body: dict[str, Any], index: int) -> dict[str, Any]:
        start = body["seed"] + index if "seed" in body else secrets.randbits(40)
        start = start if body.get("temperature", 1.0) > 0 else 0
        words = [hashlib.sha256(f"{start} {word}".encode()).hexdigest()[:6] for word in range(3 + start % 7)]
        most = body.get("max_tokens", body.get("max_completion_tokens", 100))
        reason = "length" if len(words) > most else "stop"
        words = words[:most]
        message: dict[str, Any] = {"role": "assistant", "content": " ".join(words)}
        if body.get("tools") and body.get("tool_choice") == "required":
            call = {"name": body["tools"][0]["function"]["name"], "arguments": json.dumps({"z": words[0], "a": 1})}
            message = {"role": "assistant", "content": None, "tool_calls": [{"id": f"call_{start}", "type": "function", "function": call}]}
            reason = "tool_calls"
        stop = body.get("stop") or []
        for text in [stop] if isinstance(stop, str) else stop:
            message["content"] = message["content"].split(text)[0]
        entries = [{"token": word, "logprob": -1.0, "bytes": list(word.encode()), "top_logprobs": []} for word in words]
        return {
            "index": index,
            "message": message,
            "finish_reason": reason,
            "logprobs": {"content": entries} if body.get("logprobs") else None,
            "tokens": len(words) + (self.server_state.llama and reason == "stop"),
        }
