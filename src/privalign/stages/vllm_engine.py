"""Candidates from vLLM on the GPUs of a Ray cluster, by way of `ray.data.llm`.

The processor's settings are built and checked on every machine where Ray is installed (`processor_config`, `processor`); it
runs where a GPU is. One row is one candidate with a seed of its own, so that the engine batches across prompts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from privalign.candidates.shards import to_parquet
from privalign.errors import BackendFailed, InvalidInput, MissingDependency
from privalign.stages.collect import CollectJob
from privalign.stages.engine import Advance, Job
from privalign.stages.ray_engine import connected
from privalign.stages.settings import CollectSettings, VllmSettings
from privalign.types import Candidate

Processor = Callable[[Any], Any]  # a Ray data set of rows -> one with `text` and `tokens`


class VllmEngine:
    """Makes the shards of a collection by vLLM. `make`: what builds the processor, inside the cluster's connection."""

    name = "ray-vllm"

    def __init__(self, settings: VllmSettings, make: Callable[[CollectSettings], Processor] | None = None) -> None:
        self._make = make or (lambda collection: processor(settings, collection))
        self._needs_gpu = make is None

    def run(self, job: Job, numbers: Sequence[int], advance: Advance) -> Iterator[tuple[int, bytes]]:
        """As `Engine`; a shard is handed over once all its candidates are there.

        Raises:
            BackendFailed: the cluster has no GPU.
        """
        assert isinstance(job, CollectJob)  # nothing else is generated
        if not numbers:
            return
        with connected(None) as (ray, _):
            if self._needs_gpu and not ray.cluster_resources().get("GPU"):
                raise BackendFailed("vllm: the Ray cluster has no GPU; set RAY_ADDRESS to one that has, or collect with a policy")
            shard_of = {prompt_id: number for number in numbers for prompt_id in job.ids(number)}
            found: dict[int, dict[tuple[int, int], Candidate]] = defaultdict(dict)
            prompts = ray.data.from_items([{"prompt_id": prompt_id, "prompt": job.prompts[prompt_id].text} for prompt_id in shard_of])
            drawn = self._make(job.settings)(prompts.flat_map(Rows(job.settings)))
            for row in drawn.iter_rows():
                number = shard_of[row["prompt_id"]]
                reason = "length" if row["tokens"] >= job.settings.max_tokens else "stop"  # the processor does not report it
                found[number][row["prompt_id"], row["number"]] = Candidate(row["text"], reason)
                if len(found[number]) == job.units(number) * job.settings.n:
                    whole = found.pop(number)
                    lists = [[whole[prompt_id, i] for i in range(job.settings.n)] for prompt_id in job.ids(number)]
                    advance(job.units(number))
                    yield number, to_parquet(job.table(number, lists))
            if found:
                raise BackendFailed(f"vllm: candidates are missing in {len(found)} shards; start again, the stage resumes")


class Rows:
    """A prompt -> the rows of its candidates, each with its conversation and sampling parameters."""

    def __init__(self, settings: CollectSettings) -> None:
        self._settings = settings

    def __call__(self, row: Mapping[str, Any]) -> list[dict[str, Any]]:
        first = self._settings.seed_of(row["prompt_id"])
        return [
            {
                "prompt_id": row["prompt_id"],
                "number": number,
                "prompt": row["prompt"],
                "seed": None if first is None else first + number,
            }
            for number in range(self._settings.n)
        ]


def processor_config(settings: VllmSettings) -> Any:
    """Ray's `vLLMEngineProcessorConfig`, checked by Ray.

    Raises:
        InvalidInput: a setting that Ray refuses. MissingDependency: Ray, or what its `ray.data.llm` imports, is not installed.
    """
    try:
        from pydantic import ValidationError
        from ray.data.llm import vLLMEngineProcessorConfig
    except ImportError as missing:
        raise MissingDependency(f"{missing.name or 'ray'} is not installed; get it with: pip install 'privalign[ray]'") from None
    try:
        return vLLMEngineProcessorConfig(
            model_source=settings.model,
            engine_kwargs={"enable_prefix_caching": True, **settings.engine},  # the candidates of a prompt share its prefix
            concurrency=settings.replicas,
            batch_size=settings.batch,
            accelerator_type=settings.accelerator,
        )
    except (ValidationError, ValueError) as error:
        raise InvalidInput("vllm", " ".join(str(error).split())[:300]) from None


def processor(settings: VllmSettings, collection: CollectSettings) -> Processor:
    """Chat template, tokens, vLLM, text: rows of `Rows` -> `prompt_id`, `number`, `text`, `tokens`."""
    config = processor_config(settings)
    from ray.data.llm import build_processor

    sampling = {**collection.sampling, "top_k": -1, "min_p": 0.0}  # the whole distribution, whatever the model's own defaults

    def ask(row: Mapping[str, Any]) -> dict[str, Any]:
        seeded = sampling if row["seed"] is None else {**sampling, "seed": int(row["seed"])}
        return {"messages": [{"role": "user", "content": row["prompt"]}], "sampling_params": seeded}

    def read(row: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "prompt_id": row["prompt_id"],
            "number": row["number"],
            "text": row["generated_text"],
            "tokens": row["num_generated_tokens"],
        }

    built: Processor = build_processor(config, preprocess=ask, postprocess=read)
    return built
