"""Stages on Ray Data: the same jobs on the workers of a cluster, or of a Ray that is started here.

Every worker builds its own back-ends from the job's description. Folders must be on a file system that all nodes see. A worker
that dies is replaced and its shard made again; whatever happens, the connection to Ray is closed at the end.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

from privalign.candidates.shards import to_parquet
from privalign.errors import BackendFailed, InvalidInput, MissingDependency, PrivalignError
from privalign.stages.engine import Advance, Job

OBJECT_STORE = 256 << 20  # bytes, of a Ray started here: it holds a few shards at a time
ATTEMPTS = 4  # at one shard; Ray would try for ever, and workers that die of the shard itself are no accident
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    "RAY_DEDUP_LOGS": "0",  # what was held back would be printed after the end
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # the coming default; unset, Ray warns
}


class RayEngine:
    """Shards side by side on Ray workers.

    Args:
        workers: how many at most; of a Ray started here also its CPUs. None: one a CPU.
        gpus: GPUs that each worker is given; a fraction shares one.

    `RAY_ADDRESS` names a running cluster; without it, or where it is empty, a Ray is started here, and stopped at the end.
    """

    name = "ray"

    def __init__(self, workers: int | None = None, gpus: float = 0.0) -> None:
        if workers is not None and workers < 1:
            raise InvalidInput("--workers", f"{workers} is below 1")
        if gpus < 0:
            raise InvalidInput("--gpus", f"{gpus} is below 0")
        self._workers = workers
        self._gpus = gpus

    def run(self, job: Job, numbers: Sequence[int], advance: Advance) -> Iterator[tuple[int, bytes]]:
        """As `Engine`: shards in the order in which they are done."""
        if not numbers:
            return
        with connected(self._workers) as (ray, cpus):
            import ray.data

            attempts = ray.remote(num_cpus=0)(Attempts).remote()
            made = ray.data.from_items([{"shard": number} for number in numbers], override_num_blocks=len(numbers)).map_batches(
                Worker,
                fn_constructor_args=(job, attempts),
                batch_size=1,
                batch_format="numpy",
                num_cpus=1,
                num_gpus=self._gpus or None,
                compute=ray.data.ActorPoolStrategy(min_size=1, max_size=max(1, min(self._workers or cpus, len(numbers)))),
            )
            waiting = set(numbers)
            for batch in made.iter_batches(batch_size=1, batch_format="pyarrow", prefetch_batches=0):
                (row,) = batch.to_pylist()
                if row["failure"] is not None:
                    raise (BackendFailed if row["failed_back_end"] else PrivalignError)(row["failure"])
                waiting.discard(row["shard"])
                advance(job.units(row["shard"]))
                yield row["shard"], row["content"]
            if waiting:
                raise BackendFailed(f"Ray returned no result for {len(waiting)} shards; start again, the stage resumes")


class Attempts:
    """A Ray actor that counts how often each shard was begun."""

    def __init__(self) -> None:
        self._begun: Counter[int] = Counter()

    def begin(self, number: int) -> int:
        """One more; how many that makes."""
        self._begun[number] += 1
        return self._begun[number]


class Worker:
    """One Ray actor: builds the job's back-ends once. Our own errors travel as rows, so that they arrive as one line."""

    def __init__(self, job: Job, attempts: Any) -> None:
        self._job = job
        self._attempts = attempts
        self._open = ExitStack()
        self._make: Any = None

    def __call__(self, batch: Any) -> Any:
        import pyarrow as pa
        import ray

        number = int(batch["shard"][0])
        content = failure = None
        back_end = False
        try:
            if ray.get(self._attempts.begin.remote(number)) > ATTEMPTS:
                raise BackendFailed(f"shard {number}: {ATTEMPTS} workers died of it; give them more memory, or make shards smaller")
            if self._make is None:  # here and not above: Ray starts a worker again and again whose construction fails
                self._make = self._open.enter_context(self._job.opened())
            content = to_parquet(self._make(number, lambda _: None))
        except PrivalignError as error:
            failure, back_end = str(error), isinstance(error, BackendFailed)
        return pa.table(
            {
                "shard": [number],
                "content": pa.array([content], pa.large_binary()),
                "failure": pa.array([failure], pa.string()),
                "failed_back_end": [back_end],
            }
        )


@contextlib.contextmanager
def connected(workers: int | None) -> Iterator[tuple[Any, int]]:
    """Ray, quiet, and the CPUs that it has; closed when the block ends, whatever happened. One that is open already is used, and left open.

    Raises:
        MissingDependency: Ray is not installed. BackendFailed: the cluster cannot be reached, or none can be started.
    """
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    try:
        import ray
        import ray.data
    except ImportError:
        raise MissingDependency("Ray is not installed; get it with: pip install 'privalign[ray]'") from None
    for name in ("ray", "ray.data"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # what fails is raised
    ours = not ray.is_initialized()
    if ours:
        _connect(ray, os.environ.get("RAY_ADDRESS") or None, workers)
    with contextlib.redirect_stdout(io.StringIO()):  # a thread of Ray says there that a worker died, where a document belongs
        try:
            context = ray.data.DataContext.get_current()
            context.enable_progress_bars = False
            resources: Any = ray.cluster_resources  # untyped
            yield ray, int(resources().get("CPU", 1))
        except ray.exceptions.RayError as error:
            raise BackendFailed(f"Ray: {type(error).__name__}; start again, the stage resumes") from error
        finally:
            if ours:
                ray.shutdown()


def _connect(ray: Any, address: str | None, workers: int | None) -> None:
    options: dict[str, Any] = {"address": address}
    if address is None:
        options = {"address": "local", "num_cpus": workers, "object_store_memory": OBJECT_STORE, "include_dashboard": False}
    try:
        with _muted():
            ray.init(logging_level=logging.ERROR, log_to_driver=False, **options)
    except (RuntimeError, OSError, ValueError) as error:
        said = " ".join(str(error).split())[:200]
        raise BackendFailed(f"Ray {'cannot be started' if address is None else f'at {address} cannot be reached'} ({said})") from None


@contextlib.contextmanager
def _muted() -> Iterator[None]:
    """Nothing on file descriptor 2: Ray's core says there, in C++, that it was told to be quiet. What goes wrong is raised."""
    kept = os.dup(2)
    silence = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(silence, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(silence)
