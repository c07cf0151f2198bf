"""The one place where HTTP connections are made: to policies, judges and reward models.

One rule says where requests go: to `base_url`, through `proxy` where that is given beside it, and nowhere else. HTTP_PROXY, ALL_PROXY,
NO_PROXY, their like in small letters and `.netrc` are not read: a variable that was set for something else must not decide who
sees prompts, keys and scores. Redirects are not followed. Of the environment only SSL_CERT_FILE and SSL_CERT_DIR count: they name
the certificate authorities to believe.
"""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import json
import os
import ssl
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from privalign.errors import InvalidInput, MissingDependency

if TYPE_CHECKING:
    import httpx

CONNECT_TIMEOUT = 10.0  # seconds
LARGE = 2**17  # characters, which take about a millisecond to encode
PROXY_SCHEMES = ("http", "https", "socks5", "socks5h")
MISSING = "httpx is not installed; get it with: pip install httpx"


class HttpClients:
    """Makes clients of one back-end. What is wrong with its settings is found here, before anything is sent.

    Args:
        api_key: sent as a bearer token; it appears in no message or repr.
        timeout: seconds until a connection that says nothing is given up; connecting takes at most 10 of them, and at most half.
        proxy: through which all requests go.
        keep_alive: keep connections open between requests.

    Raises:
        MissingDependency: httpx is not installed. InvalidInput: the key fits into no header, the proxy is no URL of one or needs what is
            not installed, or the certificates cannot be read.
    """

    def __init__(self, *, api_key: str | None, timeout: float, proxy: str | None = None, keep_alive: bool = True) -> None:
        try:
            import httpx
        except ImportError:
            raise MissingDependency(MISSING) from None
        if api_key is not None and (not api_key or not all("!" <= letter <= "~" for letter in api_key)):
            raise InvalidInput("api_key", "is empty or holds a space, a line end or a letter that no header can carry")
        if proxy is not None:
            check_proxy(proxy)
        self._headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if api_key is not None:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._timeout = httpx.Timeout(timeout, connect=min(CONNECT_TIMEOUT, timeout / 2))
        self._limits = httpx.Limits() if keep_alive else httpx.Limits(max_keepalive_connections=0)
        self._proxy = proxy
        self._tls = _authorities()  # once: reading the certificate store takes longer than a call on loopback

    def open(self) -> httpx.AsyncClient:
        """A client, for the event loop that it is used in first."""
        import httpx

        verify: ssl.SSLContext = self._tls
        return httpx.AsyncClient(
            headers=self._headers,
            timeout=self._timeout,
            limits=self._limits,
            verify=verify,
            proxy=self._proxy,
            trust_env=False,
            follow_redirects=False,
        )


async def encoded(body: Mapping[str, Any], characters: int) -> bytes:
    """A body as JSON.

    Args:
        characters: of its texts, about. A large one is encoded on a thread, one after the other: several at once would hold up
            everything else that the event loop has to do, for seconds.

    Raises:
        TypeError, ValueError: it holds what JSON has not.
    """
    if characters < LARGE:
        return _encode(body)
    return await asyncio.get_running_loop().run_in_executor(_encoder(os.getpid()), _encode, body)


def _encode(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, allow_nan=False).encode()


@functools.lru_cache(maxsize=1)
def _encoder(process: int) -> ThreadPoolExecutor:
    """Threads do not survive a fork, so they belong to a process."""
    return ThreadPoolExecutor(1, f"privalign-encoder-{process}")


def check_proxy(url: str) -> None:
    """Refuses what no request can go through.

    Raises:
        InvalidInput: without repeating it, as it may hold a password.
    """
    if not _names_a_proxy(url):
        example = "http://proxy.internal:3128 or socks5://127.0.0.1:1080"
        raise InvalidInput("proxy", f"is not the URL of a proxy ({', '.join(PROXY_SCHEMES)}); give one like {example}")
    if url.startswith("socks") and importlib.util.find_spec("socksio") is None:
        raise InvalidInput("proxy", "is a SOCKS proxy, which needs socksio; get it with: pip install 'httpx[socks]'")


def _names_a_proxy(url: str) -> bool:
    if not url.isascii() or not url.isprintable() or " " in url:
        return False
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:  # a bracket that is not closed, or a port that is none
        return False
    beside = parts.query or parts.fragment or parts.path.strip("/")
    return parts.scheme in PROXY_SCHEMES and bool(host) and port != 0 and not beside


def has_password(url: str) -> bool:
    """Whether a URL may hold a user name or a password, and so belongs into no deployment file."""
    return "@" in url


def _authorities() -> ssl.SSLContext:
    """Whom to believe about https servers: those of certifi, or those that the environment names."""
    import httpx

    file, folder = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    if not file and folder and not Path(folder).is_dir():
        raise InvalidInput("SSL_CERT_DIR", f"{folder} is not a folder; name one of certificates, or unset the variable")
    try:
        return httpx.create_ssl_context()
    except OSError as error:  # not there, not readable, or no certificates (ssl.SSLError)
        named, why = ("SSL_CERT_FILE", file) if file else ("certifi", "its file of certificate authorities")
        cause = "holds no certificates in PEM" if isinstance(error, ssl.SSLError) else f"cannot be read ({error.strerror})"
        raise InvalidInput(named, f"{why} {cause}; name a readable file of certificates, or unset the variable") from None
