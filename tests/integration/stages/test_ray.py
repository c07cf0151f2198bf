"""The stages on a local Ray with two CPUs: the same shards as the local engine's, whatever happens to the workers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from command_lines import overriding

ray = pytest.importorskip("ray", reason="needs Ray; get it with: pip install 'privalign[ray]'")

from privalign.errors import BackendFailed, InvalidInput  # noqa: E402
from privalign.policies.callables import CallablePolicy  # noqa: E402
from privalign.stages.collect import CollectJob  # noqa: E402
from privalign.stages.engine import LocalEngine  # noqa: E402
from privalign.stages.ray_engine import ATTEMPTS, Attempts, Worker, connected  # noqa: E402
from privalign.stages.settings import CollectSettings, VllmSettings  # noqa: E402
from privalign.stages.tasks import Prompt  # noqa: E402
from privalign.stages.vllm_engine import VllmEngine, processor, processor_config  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.*")  # Ray uses what it deprecates itself
COMMAND = [sys.executable, "-c", "from privalign.cli import main; main()"]


@pytest.fixture(scope="module")
def local_ray() -> Iterator[None]:
    """One Ray for the tests of this file; the engine uses what it finds open, and leaves it open."""
    with connected(2):
        yield


def shards(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.glob("*.parquet"))}


def test_a_ray_started_for_a_stage_collects_the_same_is_stopped_and_says_nothing(
    terminal: Any, collecting: list[object], tmp_path: Path
) -> None:
    more = ("--shard", 4, "--engine", "ray", "--workers", 2, "--out", tmp_path / "ray", "--json")
    arguments = map(str, overriding([*collecting, *more]))
    with subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        out, error = process.communicate(timeout=120)
    assert (process.returncode, error) == (0, "")
    assert json.loads(out)["candidates"] == 36
    terminal.done(*collecting, "--shard", 4, "--out", tmp_path / "local")
    assert len(shards(tmp_path / "ray")) == 3
    assert shards(tmp_path / "ray") == shards(tmp_path / "local")


@pytest.mark.usefixtures("local_ray")
def test_scores_and_grades_are_those_of_the_local_engine(terminal: Any, collecting: list[object], rewarding: Path, tmp_path: Path) -> None:
    terminal.done(*collecting, "--shard", 4, "--out", tmp_path / "c")
    for engine in ("local", "ray"):
        out = tmp_path / engine
        on = ["--engine", engine] if engine == "local" else ["--engine", engine, "--workers", 1]
        terminal.done("score", "--from", tmp_path / "c", "--config", rewarding, "--reward", "learned", *on, "--out", out / "s")
        terminal.done("grade", "--from", out / "s", "--kind", "math", *on, "--out", out / "g")
    for stage in ("s", "g"):
        assert len(shards(tmp_path / "local" / stage)) == 3
        assert shards(tmp_path / "ray" / stage) == shards(tmp_path / "local" / stage)
    assert ray.is_initialized()


@pytest.mark.usefixtures("local_ray")
def test_a_worker_killed_on_the_way_changes_nothing(terminal: Any, collecting: list[object], server: Any, tmp_path: Path) -> None:
    terminal.done(*collecting, "--out", tmp_path / "whole")
    server.delay = 0.15
    out = tmp_path / "killed"
    killed: list[int] = []

    def kill_a_worker() -> None:
        deadline = time.monotonic() + 60
        while not killed and time.monotonic() < deadline:
            time.sleep(0.05)
            if len(shards(out)) >= 2:
                for pid in _map_workers():
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)

    assassin = threading.Thread(target=kill_a_worker)
    assassin.start()
    report = terminal.done(*collecting, "--engine", "ray", "--workers", 2, "--out", out)
    assassin.join()
    assert killed
    assert report["candidates"] == 36
    assert shards(out) == shards(tmp_path / "whole")


def _map_workers() -> list[int]:
    """The actors of Ray Data that descend from this process."""
    parents, workers = {}, []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            pid = int(folder.name)
            parents[pid] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if b"MapWorker" in (folder / "cmdline").read_bytes():
                workers.append(pid)

    def ours(pid: int) -> bool:
        while pid in parents:
            if pid == os.getpid():
                return True
            pid = parents[pid]
        return False

    return [pid for pid in workers if ours(pid)]


@pytest.mark.usefixtures("local_ray")
def test_a_failing_policy_is_one_line_and_what_is_finished_stays(terminal: Any, deployment: Path, tmp_path: Path) -> None:
    known = {"prompt": "What is 0 + 0?", "responses": [{"text": "0", "proxy_reward": 0.0}] * 2}
    (tmp_path / "candidates.jsonl").write_text(json.dumps(known))
    options = ["--file", tmp_path / "prompts.jsonl", "--limit", 3, "--policy", "recorded", "--config", deployment, "--n", 2, "--shard", 1]
    line = terminal.failed("collect", *options, "--engine", "ray", "--workers", 1, "--out", tmp_path / "out", code=4)
    assert "the prompt is not among the recorded ones" in line
    assert list(shards(tmp_path / "out")) == ["part-00000.parquet"]


def test_a_shard_that_ends_every_worker_ends_the_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Attempts()
    monkeypatch.setattr(ray, "get", lambda value: value)  # the counter without its process
    worker = Worker(job(), SimpleNamespace(begin=SimpleNamespace(remote=counted.begin)))
    rows = [worker({"shard": [1]}).to_pylist()[0] for _ in range(ATTEMPTS + 1)]
    assert [row["failure"] is None for row in rows] == [True] * ATTEMPTS + [False]
    assert rows[-1]["failed_back_end"]
    assert "shard 1: 4 workers died of it" in rows[-1]["failure"]


# ---- vLLM: everything but the engine itself


def job() -> CollectJob:
    settings = CollectSettings(n=3, task="gsm8k", vllm=VllmSettings("m"), seed=7, shard=2, max_tokens=9)
    prompts = tuple(Prompt(f"p{i}", str(i)) for i in range(5))

    def say(request: Any, count: int) -> list[Any]:
        first = request.parameters["seed"]
        return [f"{request.messages[0].text} {first + number}" for number in range(count)]

    return CollectJob(settings, prompts, lambda: CallablePolicy(say, "says its seed"))


@pytest.mark.usefixtures("local_ray")
def test_rows_of_a_processor_become_the_shards_of_their_prompts() -> None:
    def echoing(settings: CollectSettings) -> Any:
        return lambda rows: rows.map(
            lambda row: {"prompt_id": row["prompt_id"], "number": row["number"], "text": f"{row['prompt']} {row['seed']}", "tokens": 9}
        ).random_shuffle(seed=1)

    made = dict(VllmEngine(VllmSettings("m"), echoing).run(job(), [0, 2], lambda _: None))
    assert sorted(made) == [0, 2]
    local = dict(LocalEngine().run(job(), [0, 2], lambda _: None))
    for number, content in made.items():
        ours, theirs = (_rows(bytes_) for bytes_ in (content, local[number]))
        assert [{**row, "finish_reason": None} for row in ours] == theirs
        assert {row["finish_reason"] for row in ours} == {"length"}


def _rows(content: bytes) -> list[dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet

    return pyarrow.parquet.read_table(pa.BufferReader(content)).to_pylist()  # type: ignore[no-any-return]


@pytest.mark.usefixtures("local_ray")
def test_vllm_without_a_gpu_says_so() -> None:
    with pytest.raises(BackendFailed, match="has no GPU"):
        list(VllmEngine(VllmSettings("m")).run(job(), [0], lambda _: None))


def test_the_processor_of_vllm_is_built_and_checked(tmp_path: Path) -> None:
    pytest.importorskip("aiohttp", reason="needs aiohttp; get it with: pip install 'privalign[ray]'")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}))
    settings = VllmSettings(str(tmp_path), {"max_model_len": 2048}, replicas=2, batch=16, accelerator="H100")
    config = processor_config(settings)
    assert (config.model_source, config.concurrency, config.batch_size, config.accelerator_type) == (str(tmp_path), 2, 16, "H100")
    assert config.engine_kwargs["max_model_len"] == 2048
    built: Any = processor(settings, job().settings)
    assert "vLLMEngineStage" in built.list_stage_names()


@pytest.mark.parametrize("change", [{"accelerator": 3}, {"batch": "many"}, {"engine": {"max_model_len": 2048}, "replicas": 0}])
def test_what_ray_refuses_is_named(change: dict[str, Any]) -> None:
    pytest.importorskip("aiohttp", reason="needs aiohttp; get it with: pip install 'privalign[ray]'")
    with pytest.raises(InvalidInput, match="vllm"):
        processor_config(VllmSettings(**{"model": "m", **change}))
