"""Hostile input over raw sockets: the right status in OpenAI's shape, bounded memory and time, no trace of the inside."""

from __future__ import annotations

import contextlib
import json
import resource
import socket
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from privalign.gateway import server

Gateway = Callable[..., Any]
Raw = Callable[..., bytes]
MEBIBYTE = 2**20


def post(running: Any, content: bytes, headers: dict[str, str] | None = None) -> httpx.Response:
    sent = {"authorization": f"Bearer {running.key}", "content-type": "application/json", **(headers or {})}
    return httpx.post(f"{running.url}/v1/chat/completions", content=content, headers=sent, timeout=30.0)


def body(message: str = "hello", **fields: Any) -> bytes:
    return json.dumps({"model": "aligned", "messages": [{"role": "user", "content": message}], **fields}).encode()


def check(running: Any, response: httpx.Response, status: int) -> Any:
    """An error in shape, which cost nothing, after which the gateway answers."""
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert "Traceback" not in response.text
    assert ".py" not in response.text
    assert running.ledger.account("prefs").length == 1
    return error


def deep(levels: int) -> bytes:
    return b'{"model":"aligned","messages":' + b"[" * levels + b"]" * levels + b"}"


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"null", b"[]", b'"x"', b"1", b"\xff\xfe{}", b'{"model":"\xff"}', '{"model":"aligned"}'.encode("utf-16"),
        b"\xef\xbb\xbf{}", b'{"model":"aligned","messages":[{"role":"user","content":"\\ud800"}]}', body(temperature=float("nan")),
        body().replace(b"}]}", b'}],"temperature":1e999}'), body().replace(b"}]}", b'}],"seed":' + b"9" * 100_000 + b"}"),
        deep(100), deep(100_000), body(x={"a": [[[[[]]]]]}).replace(b"[[[[[]]]]]", b"[" * 70 + b"]" * 70), body() + b"{}", b"\x00" * 100,
        b'{"model":"aligned","messages":{}}', b'{"model":"aligned","messages":[[]]}',
    ],
    ids=range(21),
)  # fmt: skip
def test_what_is_no_request_is_400(gateway: Gateway, content: bytes) -> None:
    running = gateway()
    check(running, post(running, content), 400)
    assert running.ask().status_code == 200


@pytest.mark.parametrize("kind", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "application/jsonx"])
def test_other_content_types_are_415(gateway: Gateway, kind: str) -> None:
    running = gateway()
    check(running, post(running, body(), {"content-type": kind}), 415)
    check(running, post(running, body(), {"content-encoding": "gzip"}), 415)


def test_json_may_say_its_charset(gateway: Gateway) -> None:
    running = gateway()
    assert post(running, body(), {"content-type": "application/json; charset=utf-8"}).status_code == 200


def test_a_large_body_is_refused_without_being_read(gateway: Gateway, raw: Raw) -> None:
    running = gateway(max_body=MEBIBYTE)
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {running.key}\r\ncontent-type: application/json\r\n"
        f"content-length: {10**12}\r\n\r\n"
    )
    began = time.monotonic()
    answer = raw(running, head.encode())
    assert time.monotonic() - began < 3
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b'"code":"request_too_large"' in answer
    form = f"POST /dashboard/login HTTP/1.1\r\nhost: x\r\nsec-fetch-site: same-origin\r\ncontent-length: {10**12}\r\n\r\n"
    assert raw(running, form.encode()).startswith(b"HTTP/1.1 413 ")
    chunked = head.replace(f"content-length: {10**12}", "transfer-encoding: chunked").encode()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    answer = raw(running, chunked, *[b"100000\r\n" + b" " * MEBIBYTE + b"\r\n"] * 40)
    assert answer.startswith(b"HTTP/1.1 413 ") or answer == b""  # the connection may break before the answer is read
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 30 * 1024  # KiB
    assert running.ask().status_code == 200


def test_without_a_key_no_body_is_read(gateway: Gateway, raw: Raw) -> None:
    running = gateway()
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n"
    began = time.monotonic()
    assert raw(running, head.encode(), patience=0.5).startswith(b"HTTP/1.1 401 ")
    assert time.monotonic() - began < 2


def test_slow_bodies_and_slow_headers_end(gateway: Gateway, raw: Raw) -> None:
    running = gateway(body_timeout=0.5)
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {running.key}\r\ncontent-type: application/json\r\n"
        "content-length: 1000\r\n\r\n"
    )
    answer = raw(running, head.encode(), *[b" "] * 20, pause=0.1)
    assert answer.startswith(b"HTTP/1.1 408 ") or answer == b""
    host, port = running.url.removeprefix("http://").split(":")
    for piece in (b"", b"GET /healthz HT"):
        began = time.monotonic()
        with socket.create_connection((host, int(port)), timeout=5) as connection:
            connection.sendall(piece)
            assert connection.recv(1000) == b""
        assert time.monotonic() - began < 3
    assert running.ask().status_code == 200


def test_header_floods_are_cut(gateway: Gateway, raw: Raw) -> None:
    running = gateway()
    flood = b"GET /healthz HTTP/1.1\r\nhost: x\r\n" + b"".join(b"x-%d: %s\r\n" % (i, b"y" * 1000) for i in range(100)) + b"\r\n"
    answer = raw(running, flood, patience=1.0)
    assert answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 431 "))
    many = b"GET /healthz HTTP/1.1\r\nhost: x\r\n" + b"".join(b"x-%d: y\r\n" % i for i in range(200)) + b"\r\n"
    assert raw(running, many, patience=1.0).startswith(b"HTTP/1.1 431 ")
    endless = raw(running, b"GET /healthz HTTP/1.1\r\nx: ", *[b"y" * 65536] * 20, patience=1.0)
    assert b"200" not in endless[:20]
    assert httpx.get(f"{running.url}/healthz").status_code == 200


@pytest.mark.parametrize(
    "content", [b"\x16\x03\x01\x02\x00\x01", b"GARBAGE\r\n\r\n", b"GET / HTTX/1.1\r\n\r\n", b"GET /\x00 HTTP/1.1\r\n\r\n"]
)
def test_what_is_no_http_is_400_in_shape(gateway: Gateway, raw: Raw, content: bytes) -> None:
    running = gateway()
    answer = raw(running, content + b"\r\n\r\n", patience=1.0)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "invalid_request"


@pytest.mark.parametrize("protocol", [b"h2c", b"websocket", b"TLS/1.0"])
def test_offers_of_another_protocol_are_passed_over(gateway: Gateway, raw: Raw, caplog: pytest.LogCaptureFixture, protocol: bytes) -> None:
    running = gateway()
    offer = b"connection: Upgrade, HTTP2-Settings, close\r\nhttp2-settings: AAMAAABkAARAAAAAAAIAAAAA\r\nupgrade: " + protocol
    answer = raw(running, b"GET /healthz HTTP/1.1\r\nhost: x\r\n" + offer + b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"upgrade" not in answer.lower()
    assert not caplog.records


def test_smuggling_is_refused(gateway: Gateway, raw: Raw) -> None:
    running = gateway()
    both = b"POST /healthz HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello"
    assert raw(running, both, patience=1.0).startswith(b"HTTP/1.1 400 ")
    for path in (b"/healthz", b"/v1/chat/completions", b"/dashboard/login"):
        for lengths in (b"content-length: 5\r\ntransfer-encoding: chunked", b"Transfer-Encoding: chunked\r\nContent-Length: 5"):
            hidden = b"0\r\n\r\nGET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"
            answer = raw(running, b"POST " + path + b" HTTP/1.1\r\nhost: x\r\n" + lengths + b"\r\n\r\n" + hidden, patience=1.0)
            assert answer.startswith(b"HTTP/1.1 400 ")
            assert b'"status":"ok"' not in answer


def test_one_connection_takes_little_of_the_loop_at_a_time(gateway: Gateway, raw: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of one byte cost thousands of times what they weigh; between two reads the others have their turn."""
    reads: list[int] = []
    receive = server._Protocol.data_received

    def counted(self: Any, data: bytes) -> None:
        reads.append(len(data))
        receive(self, data)

    monkeypatch.setattr(server._Protocol, "data_received", counted)
    running = gateway()
    heads = (f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n" for key in (running.key, "pa_0_0"))
    for head, status in zip(heads, (b"400", b"401"), strict=True):
        kind = "content-type: application/json\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
        answer = raw(running, (head + kind).encode() + b"1\r\n \r\n" * 20_000 + b"0\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 " + status) or answer == b""
    assert post(running, body("x" * 300_000)).status_code == 200
    assert max(reads) == server.MOST_AT_ONCE
    assert sum(reads) > 300_000


def test_who_does_not_read_its_answers_is_left(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "KEEP_ALIVE", 0.5)
    running = gateway()
    host, port = running.url.removeprefix("http://").split(":")
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(20)
        connection.connect((host, int(port)))
        many = 1_000_000  # more than the system keeps for a server that does not read
        with pytest.raises(ConnectionError):
            connection.sendall(b"GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n" * many)
    assert running.ask().status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/", "/v1", "/v1/", "/v1//models", "//v1/models", "/v1/models/../../etc/passwd", "/v1/models/%2e%2e%2fsecret", "/%2e%2e/metrics",
        "/v1/chat/completions/", "/V1/MODELS", "/docs", "/redoc", "/admin", "/v1/keys", "/metrics/", "/healthz%00", "/v1/models/%ff",
        "/v1/models/" + "a" * 5000,
    ],
)  # fmt: skip
def test_path_tricks_lead_nowhere(gateway: Gateway, raw: Raw, path: str) -> None:
    running = gateway()
    head = f"GET {path} HTTP/1.1\r\nhost: evil.example\r\nauthorization: Bearer {running.key}\r\nconnection: close\r\n\r\n"
    answer = raw(running, head.encode())
    status, content = answer.partition(b" ")[2][:3], answer.partition(b"\r\n\r\n")[2]
    assert status in (b"404", b"405")
    assert json.loads(content)["error"]["message"]
    assert b"evil.example" not in answer
    assert b"location" not in answer.lower()


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE", "BREW"])
def test_other_methods_are_405(gateway: Gateway, method: str) -> None:
    running = gateway()
    response = httpx.request(method, f"{running.url}/v1/chat/completions")
    assert (response.status_code, response.headers["allow"]) == (405, "POST")


def test_what_can_be_got_has_a_head(gateway: Gateway) -> None:
    """Load balancers ask for nothing else."""
    running = gateway()
    pages = ("/healthz", "/readyz", "/metrics", "/v1/models", "/v1/models/aligned", "/v1/models/none", "/openapi.json", "/dashboard/login")
    for path in (*pages, "/nothing"):
        for key in (running.officer, running.key, "wrong"):
            head, get = (
                httpx.request(method, running.url + path, headers={"authorization": f"Bearer {key}"}) for method in ("HEAD", "GET")
            )
            assert head.status_code == get.status_code
            assert head.content == b""
            assert head.headers.keys() == get.headers.keys()
    for path in ("/healthz", "/readyz", "/v1/models", "/metrics"):
        refused = httpx.post(running.url + path)
        assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD")


def test_a_head_keeps_its_connection(gateway: Gateway, raw: Raw) -> None:
    """What is asked next on it is not answered by a body that was left over."""
    running = gateway()
    head, get = (b"%s /healthz HTTP/1.1\r\nhost: x\r\n" % method for method in (b"HEAD", b"GET"))
    answers = raw(running, head + b"\r\n", head + b"\r\n" + get + b"connection: close\r\n\r\n", pause=0.1)
    assert answers.count(b"HTTP/1.1 200 ") == 3
    assert answers.count(b'{"status":"ok"}') == 1


def test_keys_cannot_be_guessed(gateway: Gateway) -> None:
    running = gateway()
    _, identity, secret = running.key.split("_")
    guesses = [
        "", "pa", "pa_", "pa__", f"pa_{identity}", f"pa_{identity}_", f"pa_{identity}_{'0' * 64}", f"pa_{identity}_{secret[:-1]}",
        f"pa_{identity}_{secret.upper()}", f"pb_{identity}_{secret}", f"pa_{identity}' OR 1=1--_{secret}", "x" * 10_000,
    ]  # fmt: skip
    for guess in guesses:
        response = httpx.get(f"{running.url}/v1/models", headers={"authorization": f"Bearer x{guess}"})
        assert response.status_code == 401
        response = httpx.get(f"{running.url}/v1/models", headers={"authorization": guess})
        assert response.status_code == 401
        assert identity not in response.text
    assert httpx.get(f"{running.url}/v1/models", params={"api_key": running.key}).status_code == 401  # never from the URL
    assert running.get("/v1/models").status_code == 200


def test_connections_that_do_nothing_do_not_stop_others(gateway: Gateway) -> None:
    running = gateway()
    host, port = running.url.removeprefix("http://").split(":")
    idle = [socket.create_connection((host, int(port))) for _ in range(200)]
    try:
        assert running.ask().status_code == 200
    finally:
        for connection in idle:
            connection.close()


def test_more_connections_than_there_are_places_for_are_closed_at_once(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the files stay free: without them nothing can be asked or settled, and asyncio fills the disk with its complaints."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert server.most_connections() == soft // 2
    monkeypatch.setattr(server, "most_connections", lambda: 20)
    running = gateway()
    host, port = running.url.removeprefix("http://").split(":")
    crowd = [socket.create_connection((host, int(port)), timeout=5) for _ in range(60)]
    closed = 0
    for connection in crowd:
        connection.settimeout(0.05)
        with contextlib.suppress(TimeoutError):
            closed += connection.recv(1) == b""
    assert closed == 40
    with pytest.raises(httpx.TransportError):
        running.ask()
    for connection in crowd:
        connection.close()

    def reachable() -> bool:
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"{running.url}/healthz").status_code == 200
        return False

    running.wait_until(reachable)
    assert running.ask().status_code == 200
