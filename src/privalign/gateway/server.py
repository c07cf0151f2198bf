"""Runs the application on a socket: limits on what arrives before it is a request, and an orderly end.

Told to stop, the server takes no more connections, refuses requests on those that are open, and lets those under way
finish for a while; then they are cancelled, which charges them once where the scorer was touched and else not at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import resource
import signal
import socket
from collections.abc import Callable, Iterator
from importlib.metadata import version

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from privalign.errors import InvalidInput
from privalign.gateway import logs
from privalign.gateway.app import Gateway
from privalign.gateway.errors import ApiError
from privalign.gateway.limits import MOST_HEADER_BYTES
from privalign.gateway.settings import GatewaySettings

BACKLOG = 128  # connections that wait to be accepted, and are taken at a time
KEEP_ALIVE = 75.0  # seconds; longer than nginx keeps its own idle connections
MOST_AT_ONCE = 8192  # bytes read from one connection before others have their turn: in chunks of one byte they take 20 ms


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 takes a free one.

    Raises:
        InvalidInput: the address cannot be had.
    """
    if not 0 <= port < 2**16:
        raise InvalidInput("--port", f"{port} is no port; give one up to 65535, or 0 for any")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        opened = socket.socket(family, kind, protocol)
    except OSError as error:
        raise InvalidInput("--host", f"{host} is not an address of this machine ({error.strerror}); give 127.0.0.1") from None
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(address)
    except OSError as error:
        opened.close()
        raise InvalidInput("--port", f"{host}:{port} cannot be listened on ({error.strerror}); give another one, or 0 for any") from None
    return opened


def address_of(listening: socket.socket) -> str:
    """The URL of a listening socket."""
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def most_connections() -> int:
    """Half of the files that this process may open: the others are for back-ends and the ledger. A server that runs out of them
    can neither answer nor settle, and asyncio logs each connection that it cannot accept, thousands of times a second.
    """
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**20 if files == resource.RLIM_INFINITY else files // 2


async def serve_until_signal(app: Gateway, listening: socket.socket, settings: GatewaySettings, ready: Callable[[], None]) -> bool:
    """Serves until SIGTERM, SIGINT or SIGHUP; whether it was SIGINT. Arguments as of `serve`.

    A SIGHUP that is ignored, as under `nohup`, stays ignored.
    """
    loop, stop, interrupted = asyncio.get_running_loop(), asyncio.Event(), False

    def signalled(number: int) -> None:
        nonlocal interrupted
        interrupted |= number == signal.SIGINT
        stop.set()

    numbers = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, signalled, number)
    try:
        await serve(app, listening, settings, ready, stop)
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
    return interrupted


async def serve(app: Gateway, listening: socket.socket, settings: GatewaySettings, ready: Callable[[], None], stop: asyncio.Event) -> None:
    """Serves until it is told to stop, and then until what is under way is finished or has had its time.

    Args:
        ready: called once requests are answered.
    """
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        lifespan="on",
        loop="asyncio",
        ws="none",
        backlog=BACKLOG,
        http=type(
            "Protocol",
            (_Protocol,),
            {"patience": settings.body_timeout, "most": most_connections(), "buffer": bytearray(MOST_AT_ONCE)},
        ),
        h11_max_incomplete_event_size=MOST_HEADER_BYTES,
        timeout_keep_alive=math.ceil(KEEP_ALIVE),
        timeout_graceful_shutdown=math.ceil(settings.shutdown_grace),
    )
    url = address_of(listening)

    def started() -> None:
        logs.emit("start", url=url, version=version("privalign"), models=list(app.models))
        ready()

    server = _Server(config, started)

    async def watch() -> None:
        await stop.wait()
        logs.emit("stopping", under_way=app.chat.under_way, seconds=settings.shutdown_grace)
        app.chat.drain()
        server.should_exit = True

    watching = asyncio.create_task(watch())
    try:
        await server.serve([listening])
    finally:
        watching.cancel()
        logs.emit("stop", url=url)


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are ours: the default raises them again after an orderly end."""
        yield


class _Protocol(H11Protocol, asyncio.BufferedProtocol):
    """HTTP/1.1 with limits on connections, on the time that headers may take and on what is read at a time, and errors in our
    shape for what is no HTTP.
    """

    patience = 30.0
    most = 2**20
    buffer = bytearray(MOST_AT_ONCE)  # of all connections of an event loop, which are read one after the other
    _impatience: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        if len(self.connections) > self.most:
            self.transport.close()
            return
        self._wait_for_request(self.patience)

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._impatience, self._stalled):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Who does not read what it asked for holds its place no longer than who asks for nothing."""
        super().pause_writing()
        self._stalled = self.loop.call_later(KEEP_ALIVE, self.transport.abort)

    def resume_writing(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
        super().resume_writing()

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(memoryview(self.buffer)[:nbytes]))

    def _should_upgrade(self) -> bool:
        """Offers of another protocol are passed over; Java's client makes one with every request, and uvicorn logs each."""
        return False

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._wait_for_request(KEEP_ALIVE + self.patience)

    def send_400_response(self, msg: str) -> None:
        error = ApiError(400, "this is not a valid HTTP request, or its headers are too large", code="invalid_request").response()
        with contextlib.suppress(h11.LocalProtocolError):  # in the middle of an answer there is no saying anything
            head = h11.Response(status_code=400, headers=[*error.raw_headers, (b"connection", b"close")], reason=b"Bad Request")
            for event in (head, h11.Data(data=bytes(error.body)), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _wait_for_request(self, seconds: float) -> None:
        if self._impatience is not None:
            self._impatience.cancel()
        self._impatience = self.loop.call_later(seconds, self._give_up)

    def _give_up(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()
