"""Where HTTP requests go: where the settings say, whatever the environment says; and what is wrong with the settings is found at once."""

from __future__ import annotations

import ast
import asyncio
import importlib.util
import json
import math
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import privalign
from privalign import http_client
from privalign.errors import BackendFailed, InvalidInput
from privalign.http_client import HttpClients, check_proxy
from privalign.policies.openai import OpenAIPolicy
from privalign.rewards import remote
from privalign.rewards.protocol import ScorerUntouched
from privalign.rewards.remote import RemoteReward, Server
from privalign.rewards.vllm import VllmScore
from privalign.sensitivity import RewardRange, Sensitivity
from privalign.types import Candidate, Request

ANSWER = {"choices": [{"index": 0, "message": {"content": "blue"}}], "data": [{"index": 0, "score": 0.5}]}
REQUEST = Request.of_prompt("hello")
SENSITIVITY = Sensitivity.of_range(RewardRange(0.0, 1.0))
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy")


class Seen:
    """A server that is a proxy as well: it answers everything itself, and remembers what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.status = 200
        seen = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                seen.asked.append(self.path)
                content = json.dumps(ANSWER).encode()
                self.send_response(seen.status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def do_CONNECT(self) -> None:
                seen.asked.append(self.path)
                self.send_error(403)

            def log_message(self, *arguments: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"


@pytest.fixture(scope="module")
def running() -> Iterator[Seen]:
    seen = Seen()
    thread = threading.Thread(target=seen.http.serve_forever, args=(0.01,))
    thread.start()
    yield seen
    seen.http.shutdown()
    seen.http.server_close()
    thread.join()


@pytest.fixture
def server(running: Seen) -> Seen:
    running.asked, running.status = [], 200
    return running


def draw(url: str, proxy: str | None = None) -> str:
    (candidate,) = asyncio.run(OpenAIPolicy(f"{url}/v1", "m", api_key="k", retries=0, proxy=proxy).draw(REQUEST, 1))
    return candidate.text


def reward(url: str, proxy: str | None = None) -> RemoteReward:
    return RemoteReward(VllmScore(None), Server(url, proxy=proxy), SENSITIVITY)


def score(url: str, proxy: str | None = None) -> float:
    return float(asyncio.run(reward(url, proxy).score(REQUEST, [Candidate("blue")]))[0])


@pytest.mark.parametrize("value", ["http://127.0.0.1:9", "socks5://127.0.0.1:9", "not a url", "http://user:secret@127.0.0.1:9"])
def test_the_environment_decides_nothing(server: Seen, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    for name in PROXIES:
        monkeypatch.setenv(name, "::1,[::1]:80" if name.lower() == "no_proxy" else value)
    assert draw(server.url) == "blue"
    assert score(server.url) == 0.5
    assert server.asked == ["/v1/chat/completions", "/score"]


@pytest.mark.parametrize("ask", [draw, score])
def test_a_proxy_that_is_given_is_used(server: Seen, ask: Callable[[str, str], Any]) -> None:
    ask("http://model.invalid", server.url)
    assert [path.partition("invalid")[0] for path in server.asked] == ["http://model."]


def test_a_connection_that_the_proxy_did_not_open_touched_nothing(server: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "FIRST_WAIT", 0.0)
    with pytest.raises(ScorerUntouched):
        score("https://model.invalid", server.url)
    assert set(server.asked) == {"model.invalid:443"}
    with pytest.raises(ScorerUntouched):
        score("http://model.invalid", "http://127.0.0.1:9")


@pytest.mark.parametrize("status", [401, 403, 404, 413, 422, 429])
def test_the_word_of_a_proxy_is_not_taken_for_the_scorers(server: Seen, status: int) -> None:
    """It may have read the scores and refused them."""
    server.status = status
    with pytest.raises(BackendFailed) as failure:
        score("http://model.invalid", server.url)
    assert not isinstance(failure.value, ScorerUntouched)
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    "url",
    [
        "",
        "proxy",
        "proxy:3128",
        "ftp://proxy",
        "http://",
        "http://[::1",
        "http://h:99999",
        "http://h:0",
        "http://h/path",
        "http://h?k=secret",
    ],
)
def test_a_bad_proxy_is_found_before_anything_is_sent(url: str) -> None:
    for make in (lambda: draw("http://h", url), lambda: reward("http://h", url)):
        with pytest.raises(InvalidInput, match=r"^proxy: is not the URL of a proxy.*give one like") as refusal:
            make()
        assert "secret" not in str(refusal.value)


@pytest.mark.parametrize("url", ["http://h", "https://h:3128/", "http://user:word@h:1", "http://[::1]:3128"])
def test_proxies(url: str) -> None:
    check_proxy(url)
    HttpClients(api_key=None, timeout=1.0, proxy=url).open()


def test_what_socks_needs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InvalidInput, match=r"proxy: .*pip install 'httpx\[socks\]'"):
        check_proxy("socks5://127.0.0.1:1080")


@pytest.mark.parametrize("variable", ["SSL_CERT_FILE", "SSL_CERT_DIR"])
@pytest.mark.parametrize("there", [True, False])
def test_certificates_that_cannot_be_read_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str, there: bool) -> None:
    file = tmp_path / "authorities"
    if there:
        file.write_text("no certificate")
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.setenv(variable, str(file))
    for make in (lambda: draw("http://h"), lambda: reward("http://h")):
        with pytest.raises(InvalidInput, match=rf"^{variable}: .*authorities .*or unset the variable$"):
            make()


@pytest.mark.parametrize("key", ["", "two words", "line\nend", "ключ"])
def test_a_key_that_no_header_carries_is_refused_and_not_repeated(key: str) -> None:
    scorer = Server("http://h", key)
    for make in (lambda: OpenAIPolicy("http://h", "m", api_key=key), lambda: RemoteReward(VllmScore(None), scorer, SENSITIVITY)):
        with pytest.raises(InvalidInput, match=r"^api_key: ") as refusal:
            make()
        assert not key or key not in str(refusal.value)


CONNECTING = {"Client", "AsyncClient", "HTTPTransport", "AsyncHTTPTransport", "get", "post", "request", "stream"}
OTHERS = {"requests", "aiohttp", "urllib3", "urllib.request", "http.client"}


def connects(node: ast.AST) -> bool:
    """Whether a node makes a connection, or brings in what may."""
    match node:
        case ast.Import(names=names):
            return bool(OTHERS & {name.name for name in names})
        case ast.ImportFrom(module=module):
            return module == "httpx" or module in OTHERS
        case ast.Call(func=ast.Attribute(value=ast.Name(id="httpx"), attr=made)):
            return made in CONNECTING
    return False


def test_nothing_else_connects() -> None:
    """No other file makes a client, by whatever library."""
    files = Path(privalign.__file__).parent.rglob("*.py")
    assert [file.name for file in files if any(map(connects, ast.walk(ast.parse(file.read_text("utf-8")))))] == ["http_client.py"]


def test_large_bodies_are_encoded_one_after_the_other_while_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []
    encode = http_client._encode

    def watched(body: dict[str, Any]) -> bytes:
        threads.append(threading.current_thread().name)
        return encode(body)

    monkeypatch.setattr(http_client, "_encode", watched)
    body = {"messages": [{"role": "user", "content": "é" * http_client.LARGE}]}

    async def together() -> list[bytes]:
        return await asyncio.gather(*(http_client.encoded(body, size) for size in [http_client.LARGE] * 4 + [10]))

    assert asyncio.run(together()) == [json.dumps(body).encode()] * 5
    here = threading.current_thread().name
    assert len(set(threads)) == 2
    assert threads.count(here) == 1
    for bad in ({"x": math.nan}, {"x": object()}):
        for size in (10, http_client.LARGE):
            with pytest.raises((TypeError, ValueError)):
                asyncio.run(http_client.encoded(bad, size))
