"""Recipes: one TOML file that says how an experiment is run, stage by stage, from prompts to tables.

```toml
[run]
name = "gsm8k-phi3"

[collect]                                # prompts -> candidates
task = "gsm8k"                           # or file = "prompts.jsonl"
policy = "phi3"                          # a [policies.*] table; or vllm = { model = "…" } for --engine ray on GPUs
n = 16
seed = 1

[score]
rewards = ["armo"]                       # [rewards.*] tables, each a column; the first one is proxy_reward too

[grade]
kind = "math"                            # math | letter | reward | judge

[evaluate.comparison]                    # studies: passed on to `privalign evaluate` as they stand
mechanisms = ["bon", "privitp"]
```

`[policies.*]` and `[rewards.*]` are those of the deployment file. Paths are relative to the recipe.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privalign.deployment.policies import read_policy
from privalign.deployment.rewards import RewardSpec, read_reward
from privalign.deployment.tables import Table
from privalign.errors import InvalidFile, InvalidInput
from privalign.policies.protocol import Policy
from privalign.rewards.protocol import Reward
from privalign.stages.settings import CollectSettings, GradeSettings, ScoreSettings, VllmSettings

_NAME = re.compile(r"\w[\w-]*")
KNOWN = ("run", "collect", "score", "grade", "evaluate", "policies", "rewards")


@dataclass(frozen=True, slots=True)
class PolicySource:
    """A `[policies.*]` table that travels to a worker and builds the policy there; it holds references to secrets, no secrets."""

    file: Path
    name: str
    table: Mapping[str, Any]

    def __call__(self) -> Policy:
        return read_policy(self.name, Table(self.file, f"policies.{self.name}", self.table)).make()


@dataclass(frozen=True, slots=True)
class RewardSource:
    """A `[rewards.*]` table, with the tables that an ensemble names, that travels to a worker and builds the reward there."""

    file: Path
    name: str
    tables: Mapping[str, Mapping[str, Any]]

    @property
    def table(self) -> Mapping[str, Any]:
        """The reward's own table."""
        return self.tables[self.name]

    def __call__(self) -> Reward:
        members: dict[str, RewardSpec] = {}
        for name in self.table.get("members", ()):
            if name in self.tables:  # else the ensemble's own check says so
                members[name] = read_reward(name, Table(self.file, f"rewards.{name}", self.tables[name]), members)
        return read_reward(self.name, Table(self.file, f"rewards.{self.name}", self.table), members).make()


@dataclass(frozen=True, slots=True)
class BackEnds:
    """The `[policies.*]` and `[rewards.*]` tables of a recipe or a deployment file, not yet built."""

    file: Path
    policies: Mapping[str, Mapping[str, Any]]
    rewards: Mapping[str, Mapping[str, Any]]

    def policy(self, name: str, field: str) -> PolicySource:
        """The policy of that name, its table checked.

        Raises:
            InvalidInput: there is none (`field` asked for it), or its table is wrong.
        """
        if name not in self.policies:
            raise InvalidInput(field, f"there is no [policies.{name}] in {self.file}; known are {', '.join(self.policies) or 'none'}")
        source = PolicySource(self.file, name, self.policies[name])
        read_policy(name, Table(self.file, f"policies.{name}", source.table))
        return source

    def reward(self, name: str, field: str) -> RewardSource:
        """The reward model of that name; its table is read when the stage that scores builds it, a certificate may come later.

        Raises:
            InvalidInput: there is none (`field` asked for it).
        """
        if name not in self.rewards:
            raise InvalidInput(field, f"there is no [rewards.{name}] in {self.file}; known are {', '.join(self.rewards) or 'none'}")
        return RewardSource(self.file, name, self.rewards)


@dataclass(frozen=True, slots=True)
class Recipe:
    """A recipe, checked; a stage that the file leaves out is None.

    `studies` are the `[evaluate.NAME]` tables as they stand, in the order of the file, each with its `name`.
    """

    file: Path
    name: str
    collect: CollectSettings | None
    score: ScoreSettings | None
    grade: GradeSettings | None
    studies: tuple[Mapping[str, Any], ...]
    back_ends: BackEnds


def read_recipe(path: Path) -> Recipe:
    """Reads and checks a recipe; nothing is contacted and no secret is read.

    Raises:
        InvalidFile: unreadable or not TOML. InvalidInput: names the table, the key, the value and the remedy.
    """
    document = _document(path, "give a recipe")
    for name, value in document.items():
        if name not in KNOWN or not isinstance(value, dict):
            raise InvalidInput(f"{path}: [{name}]", f"no such table; known are {', '.join(KNOWN)}")
    run = Table(path, "run", document.get("run", {}))
    name = run.text("name", path.stem)
    run.close()
    stages = {stage: Table(path, stage, document[stage]) if stage in document else None for stage in ("collect", "score", "grade")}
    back_ends = _back_ends(path, document)
    recipe = Recipe(
        path,
        name,
        _collect(stages["collect"]),
        _score(stages["score"]),
        _grade(stages["grade"]),
        _studies(path, document),
        back_ends,
    )
    if recipe.collect is not None and recipe.collect.policy is not None:
        back_ends.policy(recipe.collect.policy, f"{path}: [collect] policy")
    for reward in () if recipe.score is None else recipe.score.rewards:
        back_ends.reward(reward, f"{path}: [score] rewards")
    if recipe.grade is not None and recipe.grade.policy is not None:
        back_ends.policy(recipe.grade.policy, f"{path}: [grade] policy")
    return recipe


def read_back_ends(path: Path) -> BackEnds:
    """The policies and reward models of a deployment file, or of a recipe; its other tables are not looked at.

    Raises:
        InvalidFile: unreadable or not TOML. InvalidInput: a table is none.
    """
    return _back_ends(path, _document(path, "write one with `privalign init`"))


def _studies(path: Path, document: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """The `[evaluate.NAME]` tables; a name becomes that of a file."""
    studies = []
    for name, values in _tables(path, document, "evaluate").items():
        if not _NAME.fullmatch(name):
            raise InvalidInput(f"{path}: [evaluate.{name!r}]", "is no name for a file; give letters, digits, - and _")
        if "name" in values:
            raise InvalidInput(f"{path}: [evaluate.{name}] name", "is said in the table's head already; leave it out")
        studies.append({"name": name, **values})
    return tuple(studies)


def _back_ends(path: Path, document: Mapping[str, Any]) -> BackEnds:
    return BackEnds(path, _tables(path, document, "policies"), _tables(path, document, "rewards"))


def _document(path: Path, remedy: str) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise InvalidFile(str(path), None, f"cannot be read ({error.strerror}); {remedy}") from None
    except (ValueError, RecursionError) as error:  # not TOML, not UTF-8, a number of thousands of digits, or too deep
        raise InvalidFile(str(path), None, f"not TOML that can be read here: {error}") from None


def _tables(path: Path, document: Mapping[str, Any], kind: str) -> dict[str, Mapping[str, Any]]:
    tables = document.get(kind, {})
    for name, values in tables.items() if isinstance(tables, dict) else [("", None)]:
        if not isinstance(values, dict):
            raise InvalidInput(f"{path}: [{kind}] {name}".rstrip(), f"is not a table; write [{kind}.NAME]")  # it may be a secret
    return dict(tables)


def _collect(table: Table | None) -> CollectSettings | None:
    if table is None:
        return None
    vllm = table.table("vllm") if table.has("vllm") else None
    defaults = CollectSettings.defaults()
    values = {
        "task": table.text("task", None),
        "file": table.path("file", None),
        "hub": table.path("hub", None),
        "limit": table.whole("limit", None),
        "policy": table.text("policy", None),
        "vllm": None if vllm is None else _vllm(vllm),
        "n": table.whole("n"),
        "temperature": table.number("temperature", defaults["temperature"]),
        "top_p": table.number("top_p", defaults["top_p"]),
        "max_tokens": table.whole("max_tokens", defaults["max_tokens"]),
        "seed": table.index("seed", None),
        "shard": table.whole("shard", None),
        "chunk": table.whole("chunk", defaults["chunk"]),
        "concurrency": table.whole("concurrency", defaults["concurrency"]),
    }
    table.close()
    with table.naming():
        return CollectSettings(**values)


def _vllm(table: Table) -> VllmSettings:
    settings = VllmSettings(
        model=table.text("model"),
        engine=table.mapping("engine", {}),
        replicas=table.whole("replicas", 1),
        batch=table.whole("batch", 64),
        accelerator=table.text("accelerator", None),
    )
    table.close()
    return settings


def _score(table: Table | None) -> ScoreSettings | None:
    if table is None:
        return None
    settings = {"rewards": table.names("rewards"), "batch": table.whole("batch", ScoreSettings.defaults()["batch"])}
    table.close()
    with table.naming():
        return ScoreSettings(**settings)


def _grade(table: Table | None) -> GradeSettings | None:
    if table is None:
        return None
    defaults = GradeSettings.defaults()
    scale = table.range("range") if table.has("range") else None
    values = {
        "kind": table.text("kind"),
        "choices": table.whole("choices", defaults["choices"]),
        "timeout": table.duration("timeout", defaults["timeout"]),
        "workers": table.whole("workers", defaults["workers"]),
        "reward": table.text("reward", None),
        "range": None if scale is None else (scale.low, scale.high),
        "policy": table.text("policy", None),
        "criterion": table.text("criterion", None),
        "temperature": table.number("temperature", defaults["temperature"]),
        "max_tokens": table.whole("max_tokens", defaults["max_tokens"]),
        "seed": table.index("seed", None),
        "concurrency": table.whole("concurrency", defaults["concurrency"]),
    }
    table.close()
    with table.naming():
        return GradeSettings(**values)
