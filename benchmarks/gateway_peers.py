"""Throughput at saturation on one upstream: privalign's gateway against optillm's best-of-N proxy and LiteLLM's proxy with a budget.

`python benchmarks/gateway_peers.py [--seconds 10] [--clients 32] [--peers FOLDER]`

Each peer is installed into a virtual environment of its own under FOLDER (kept, so that a second run does not install again);
one that cannot be installed or started is reported and left out. Upstream, gateway and clients are processes on loopback. The
upstream answers any request after a constant time with as many choices as it is asked for, and scores as vLLM's `/score` does, all
candidates in one call. privalign draws n = 4, scores through the same upstream, selects with PrivBoN and debits a SQLite ledger durably;
optillm draws n = 4 and rates each by a call to the same upstream; LiteLLM passes one answer through and keeps a budget in memory.
Rounds alternate, so that noise of the machine meets all alike; printed are medians and ratios (above 1: privalign serves more).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

N = 4
DELAY = 0.02  # seconds of every upstream call
ROUNDS = 3
START = 120.0  # seconds that a proxy may take to start
PATIENCE = 30.0  # seconds that a client waits for an answer


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def read_message(reader: asyncio.StreamReader) -> tuple[str, bytes, bool]:
    """First line and body of an HTTP/1.1 message that has a length or is chunked, and whether it is the connection's last."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.split("\r\n")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    last = headers.get("connection", "").lower() == "close"
    if headers.get("transfer-encoding") == "chunked":
        body = b""
        while size := int(await reader.readline(), 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readline()
        return first, body, last
    return first, await reader.readexactly(int(headers.get("content-length", 0))), last


def upstream(port: int) -> None:
    """A model server and a reward server, both with constant answers after a constant time."""

    def reply(path: str, body: dict[str, Any]) -> dict[str, Any]:
        if path.endswith("/score"):
            return {"data": [{"index": i, "score": (i % 7) / 7} for i in range(len(body["text_2"]))]}
        if path.endswith("/models"):
            return {"object": "list", "data": [{"id": "small", "object": "model", "created": 0, "owned_by": "test"}]}
        choices = [
            {"index": i, "message": {"role": "assistant", "content": f"{(i + 5) % 10}"}, "finish_reason": "stop", "logprobs": None}
            for i in range(body.get("n") or 1)
        ]
        usage = {"prompt_tokens": 8, "completion_tokens": len(choices), "total_tokens": 8 + len(choices)}
        return {"id": "c", "object": "chat.completion", "created": 0, "model": "small", "choices": choices, "usage": usage}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                first, body, last = await read_message(reader)
                await asyncio.sleep(DELAY)
                answer = json.dumps(reply(first.split()[1], json.loads(body or b"{}"))).encode()
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(answer) + answer)
                await writer.drain()
                if last:
                    break
        writer.close()

    async def main() -> None:
        async with await asyncio.start_server(serve, "127.0.0.1", port, backlog=1024) as server:
            await server.serve_forever()

    asyncio.run(main())


def load(port: int, key: str, model: str, clients: int, seconds: float) -> tuple[int, int]:
    """How many requests were answered with 200, and how many otherwise, by so many clients that never pause."""
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "Name a number."}], "max_tokens": 4}).encode()
    request = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nauthorization: Bearer {key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    ).encode() + body

    async def client(until: float) -> tuple[int, int]:
        good = bad = 0
        while time.monotonic() < until:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                last = False
                while not last and time.monotonic() < until:
                    writer.write(request)
                    async with asyncio.timeout(PATIENCE):
                        first, _, last = await read_message(reader)
                    ok = first.split()[1] == "200"
                    good, bad = good + ok, bad + (not ok)
                writer.close()
            except (OSError, TimeoutError, asyncio.IncompleteReadError):
                bad += 1
                await asyncio.sleep(0.05)
        return good, bad

    async def main() -> tuple[int, int]:
        until = time.monotonic() + seconds
        counts = await asyncio.gather(*(client(until) for _ in range(clients)))
        return sum(count[0] for count in counts), sum(count[1] for count in counts)

    return asyncio.run(main())


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy that is running."""

    name: str
    port: int
    key: str
    model: str


@contextlib.contextmanager
def running(name: str, command: list[str], port: int, folder: Path, environment: dict[str, str]) -> Iterator[None]:
    """The command, until the block ends; it must listen within `START`."""
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, cwd=folder, env=os.environ | environment, start_new_session=True
        )
        try:
            until = time.monotonic() + START
            while True:
                if process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError(f"{name} did not start: {(folder / f'{name}.log').read_text(errors='replace')[-400:]}")
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.2):
                    break
                time.sleep(0.1)
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@contextlib.contextmanager
def privalign(folder: Path, source: int) -> Iterator[Proxy]:
    url, program = f"http://127.0.0.1:{source}", Path(sys.executable).parent / "privalign"
    config = folder / "privalign.toml"
    config.write_text(
        f"""
[ledger]
url = "sqlite:///ledger.db"
[gateway]
requests_per_minute = 1e6
burst = 100000
[accounts.prefs]
epsilon = 1e6
delta = 1e-6
[policies.local]
independent_of_accounts = true
kind = "openai"
base_url = "{url}/v1"
model = "small"
[rewards.remote]
kind = "vllm-score"
base_url = "{url}"
model = "small"
range = [0.0, 1.0]
sensitivity = {{ declared = 0.01, reason = "constant answers" }}
[models.aligned]
policy = "local"
reward = "remote"
account = "prefs"
mechanism = {{ kind = "privbon", n = {N}, scale = 1.0 }}
"""
    )
    environment = {"PRIVALIGN_SECRET_FILE": str(folder / "secret")}
    made = subprocess.run(
        [program, "key", "create", "--role", "client", "--ledger", f"sqlite:///{folder / 'ledger.db'}", "--json"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | environment,
        cwd=folder,
    )
    port = free_port()
    command = [str(program), "serve", "--config", str(config), "--port", str(port)]
    with running("privalign", command, port, folder, environment):
        yield Proxy("privalign", port, json.loads(made.stdout)["key"], "aligned")


@contextlib.contextmanager
def optillm(folder: Path, source: int, program: Path) -> Iterator[Proxy]:
    port = free_port()
    command = [str(program), "--approach", "bon", "--best-of-n", str(N), "--base-url", f"http://127.0.0.1:{source}/v1"]
    command += ["--model", "small", "--port", str(port), "--log", "error"]
    with running("optillm", command, port, folder, {"OPENAI_API_KEY": "none", "HF_HUB_OFFLINE": "1"}):
        yield Proxy("optillm", port, "none", "small")


@contextlib.contextmanager
def litellm(folder: Path, source: int, program: Path) -> Iterator[Proxy]:
    port, config = free_port(), folder / "litellm.yaml"
    config.write_text(
        f"""
model_list:
  - model_name: small
    litellm_params: {{model: openai/small, api_base: "http://127.0.0.1:{source}/v1", api_key: none}}
litellm_settings: {{max_budget: 1000000, budget_duration: 30d, telemetry: false}}
general_settings: {{master_key: sk-local}}
"""
    )
    environment = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR"}
    command = [str(program), "--config", str(config), "--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"]
    with running("litellm", command, port, folder, environment):
        yield Proxy("litellm", port, "sk-local", "small")


def installed(folder: Path, name: str, *packages: list[str]) -> Path | None:
    """The peer's program in a virtual environment of its own, or None where it cannot be had."""
    home = folder / name
    program = home / "bin" / name
    try:
        if not program.exists():
            subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
            for group in packages:
                subprocess.run([str(home / "bin" / "pip"), "install", "--quiet", *group], check=True, capture_output=True, timeout=900)
        return program
    except (subprocess.SubprocessError, OSError) as error:
        sys.stdout.write(f"{name}: not installed ({type(error).__name__}); left out\n")
        return None


def measure(stack: contextlib.ExitStack, folder: Path, source: int, peers: Path) -> list[Proxy]:
    """All proxies that start, one after another, kept running."""
    proxies = [stack.enter_context(privalign(folder, source))]
    wanted = (
        ("optillm", optillm, (["torch==2.13.0"], ["optillm"])),
        ("litellm", litellm, (["litellm[proxy]"],)),
    )
    for name, start, packages in wanted:
        program = installed(peers, name, *packages)
        if program is not None:
            try:
                proxies.append(stack.enter_context(start(folder, source, program)))
            except RuntimeError as error:
                sys.stdout.write(f"{name}: left out; {error}\n")
    return proxies


def main() -> None:
    """Prints requests per second, medians over rounds, and the ratio of privalign's to each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--peers", type=Path, default=Path("peers"))
    options = parser.parse_args()
    peers = options.peers.resolve()
    peers.mkdir(parents=True, exist_ok=True)
    source = free_port()
    server = multiprocessing.get_context("spawn").Process(target=upstream, args=(source,), daemon=True)
    server.start()
    try:
        with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
            proxies = measure(stack, Path(name), source, peers)
            rates: dict[str, list[float]] = {proxy.name: [] for proxy in proxies}
            errors = dict.fromkeys(rates, 0)
            for proxy in proxies:
                load(proxy.port, proxy.key, proxy.model, options.clients, 2.0)  # warm
            for _ in range(ROUNDS):
                for proxy in proxies:
                    good, bad = load(proxy.port, proxy.key, proxy.model, options.clients, options.seconds)
                    rates[proxy.name].append(good / options.seconds)
                    errors[proxy.name] += bad
        mine = statistics.median(rates["privalign"])
        sys.stdout.write(f"{options.clients} clients, upstream {DELAY * 1000:.0f} ms a call, median of {ROUNDS} × {options.seconds:g} s\n")
        for name, found in rates.items():
            middle = statistics.median(found)
            ratio = f"{mine / middle:.2f}" if middle else "–"
            sys.stdout.write(f"{name:10} {middle:8.1f} requests/s   privalign/{name} {ratio}   not answered {errors[name]}\n")
    finally:
        server.terminate()
        server.join()


if __name__ == "__main__":
    main()
