"""What tests of several rooms share: a real PostgreSQL that the tests start themselves, and fresh ledgers on both databases."""

from __future__ import annotations

import gc
import itertools
import os
import shutil
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import hypothesis
import pytest

from privalign.errors import MissingDependency
from privalign.policies.llamacpp import embedded_model

_numbers = itertools.count()

# `make test` draws the same examples every time, so that it fails for a change and never by chance; `make search` draws
# new ones, more of them, and what it finds becomes an @example
hypothesis.settings.register_profile("fixed", derandomize=True, deadline=None)
hypothesis.settings.register_profile("search", max_examples=500, print_blob=True, deadline=None)
hypothesis.settings.load_profile(os.environ.get("PRIVALIGN_EXAMPLES", "fixed"))


def pytest_collection_finish() -> None:
    """What collecting has loaded stays: without this every collection of garbage would look through all of it, for seconds."""
    gc.collect()
    gc.freeze()


def fresh_folder() -> Path:
    """A folder in memory where the machine has room: these tests are about crowds and crashes, not about the disk."""
    memory = Path("/dev/shm")
    roomy = memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 2**29
    return Path(tempfile.mkdtemp(prefix="privalign-", dir=memory if roomy else None))


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Lets processes that a test starts be interrupted, or hung up, also where this one, as a job in the background, ignores that.

    The commands leave ignored signals ignored, as shells and nohup mean it. A handler here is the default in what is started.
    """
    handlers = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: lambda *_: sys.exit(129)}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session", autouse=True)
def _config_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Installation key and anchors of the tests, apart from those of whoever runs them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        yield


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    """The URL of a PostgreSQL server of this test run."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about XDG_RUNTIME_DIR
        import pgserver

        folder = fresh_folder()
        server = pgserver.get_server(folder)
    yield server.get_uri().replace("postgresql://", "postgresql+psycopg://")
    server.cleanup()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def sqlite_url() -> Iterator[str]:
    """A new SQLite ledger."""
    folder = fresh_folder()
    yield f"sqlite:///{folder}/ledger.db"
    shutil.rmtree(folder)


@pytest.fixture
def postgresql_url(postgresql: str) -> str:
    """A new PostgreSQL ledger: a schema of its own."""
    import psycopg

    schema = f"ledger_{next(_numbers)}"
    with psycopg.connect(postgresql.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}")
    return f"{postgresql}&options=-csearch_path%3D{schema}"


@pytest.fixture(params=["sqlite", "postgresql"])
def ledger_url(request: pytest.FixtureRequest) -> str:
    """A new ledger on each database."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@contextmanager
def _llamacpp(slots: int, context: int) -> Iterator[str]:
    import xllamacpp

    try:
        model = embedded_model()
    except MissingDependency as missing:
        pytest.skip(str(missing))
    params = xllamacpp.CommonParams()
    params.model.path = str(model)
    params.n_parallel, params.n_ctx, params.port = slots, slots * context, 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.cache_ram_mib, params.warmup, params.verbosity = 0, False, -1
    server = xllamacpp.Server(params)
    yield f"{server.listening_address}/v1"
    del server


@pytest.fixture(scope="session")
def llamacpp_server() -> Callable[[int, int], AbstractContextManager[str]]:
    """Starts a real llama.cpp server with the small model: of so many slots, each of so many tokens; gives its base URL."""
    return _llamacpp
