"""`[rewards.*]` tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from privalign.deployment.tables import Table, resolve_proxy, resolve_secret
from privalign.errors import InvalidFile
from privalign.rewards.protocol import Reward
from privalign.secret import existing_key
from privalign.sensitivity import Relation, Sensitivity, load_certificate

REWARD_KINDS = (
    "vllm-classify",
    "vllm-score",
    "vllm-pooling",
    "sglang",
    "sglang-classify",
    "tei",
    "tei-rerank",
    "transformers",
    "head",
    "ensemble",
)


@dataclass(frozen=True, slots=True)
class RewardSpec:
    """A `[rewards.*]` table: its sensitivity is known at once, `make` builds the rest.

    `range_from` says who vouches that the range is public: the "operator" who typed it, scores of a "public" reward model, or the
    "certificate" of a head.
    """

    name: str
    kind: str
    sensitivity: Sensitivity
    make: Callable[[], Reward]
    range_from: str = "operator"


def read_reward(name: str, table: Table, others: Mapping[str, RewardSpec]) -> RewardSpec:
    kind = table.choice("kind", REWARD_KINDS)
    if kind == "head":
        spec = _head(name, table)
    elif kind == "ensemble":
        spec = _ensemble(name, table, others)
    else:
        sensitivity = _sensitivity(table)
        mapping = (table.number("scale", 1.0), table.number("offset", 0.0))
        if mapping[0] == 0:
            raise table.wrong("scale", "0 is not a number other than 0; it would make all scores equal")
        make = _transformers(table, sensitivity, mapping) if kind == "transformers" else _remote(kind, table, sensitivity, mapping)
        spec = RewardSpec(name, kind, sensitivity, make, table.choice("range_from", ("operator", "public"), "operator"))
    if table.flag("reasoning", False):
        spec = replace(spec, make=_reading_reasoning(spec.make))
    table.close()
    return replace(spec, make=table.located(spec.make))


def _reading_reasoning(make: Callable[[], Reward]) -> Callable[[], Reward]:
    def made() -> Reward:
        from privalign.rewards.reasoning import ReasoningReward

        return ReasoningReward(make())

    return made


def _sensitivity(table: Table) -> Sensitivity:
    """ "range", { certificate = FILE } or { declared = X, reason = "…", relation, records_per_person }."""
    reward_range = table.range("range")
    if table.is_word("sensitivity", "range"):
        return Sensitivity.of_range(reward_range)
    if not table.has_table("sensitivity"):
        raise table.wrong("sensitivity", 'neither "range" nor { certificate = FILE } nor { declared = X, reason = "…" }; give one')
    inner = table.table("sensitivity")
    if inner.has("certificate"):
        from privalign.rewards.stated import certified_sensitivity

        path = inner.path("certificate")
        inner.close()
        assert path is not None
        with table.naming("sensitivity"):
            return certified_sensitivity(path, reward_range)
    from privalign.rewards.stated import declared_sensitivity

    value, reason = inner.number("declared"), inner.text("reason")
    relation = Relation(inner.choice("relation", tuple(item.value for item in Relation), "replace"))
    records = inner.whole("records_per_person", 1)
    inner.close()
    with table.naming("sensitivity"):
        return declared_sensitivity(value, reward_range, reason=reason, relation=relation, records_per_person=records)


def _template(table: Table) -> Callable[[], Any]:
    file = table.path("template", None)

    def make() -> Any:
        if file is None:
            return None
        from privalign.rewards.conversation import ChatTemplate

        try:
            return ChatTemplate(file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError):
            raise InvalidFile(str(file), None, "the chat template cannot be read; give the Jinja file of the reward model") from None

    return make


_UNNAMED = {"vllm": (None,), "tei": ("served",)}  # servers of one model, which takes no name in a request


def _remote(kind: str, table: Table, sensitivity: Sensitivity, mapping: tuple[float, float]) -> Callable[[], Reward]:
    url, key, proxy = table.text("base_url"), table.secret("api_key"), table.proxy()
    model = table.text("model", *_UNNAMED.get(kind.partition("-")[0], ()))
    template = _template(table) if kind not in ("vllm-score", "tei-rerank") else None
    activation = table.flag("activation", False) if not kind.startswith("sglang") else False
    label: Any = None
    if kind == "tei":
        label = table.text("label", None)
    elif kind == "sglang-classify":
        label = table.index("label")
    elif kind in ("vllm-classify", "vllm-pooling", "sglang"):
        label = table.index("label", None)
    server = {
        "batch_size": table.whole("batch_size", 32),
        "concurrency": table.whole("concurrency", 8),
        "timeout": table.duration("timeout", 60.0),
        "max_characters": table.whole("max_characters", None),
    }

    def make() -> Reward:
        from privalign.rewards import sglang, tei, vllm
        from privalign.rewards.remote import RemoteReward, Server
        from privalign.rewards.scores import AffineMap

        rendered: Any = template() if template is not None else None
        dialects: dict[str, Callable[[], Any]] = {
            "vllm-classify": lambda: vllm.VllmClassify(model, activation, rendered, label),
            "vllm-pooling": lambda: vllm.VllmPooling(model, activation, rendered, label),
            "vllm-score": lambda: vllm.VllmScore(model, activation),
            "sglang": lambda: sglang.SglangClassify(model, rendered, label),
            "sglang-classify": lambda: sglang.SglangV1Classify(model, rendered, label),
            "tei": lambda: tei.TeiPredict(model, activation, rendered, label),
            "tei-rerank": lambda: tei.TeiRerank(model, activation),
        }
        where = Server(url, resolve_secret(key), **server, proxy=resolve_proxy(proxy))
        return RemoteReward(dialects[kind](), where, sensitivity, AffineMap(*mapping))

    if kind.startswith("sglang") and not table.has("template"):
        raise table.wrong("template", "missing; SGLang applies no chat template, give the reward model's as a Jinja file")
    return make


def _transformers(table: Table, sensitivity: Sensitivity, mapping: tuple[float, float]) -> Callable[[], Reward]:
    model, template = table.text("model"), _template(table)
    reading = {
        "output": table.choice("output", ("logits", "score"), "logits"),
        "label": table.index("label", None),
        "activation": table.choice("activation", ("none", "sigmoid", "softmax"), "none"),
    }
    options = {
        "revision": table.text("revision", None),
        "trust_remote_code": table.flag("trust_remote_code", False),
        "device": table.text("device", "cpu"),
        "dtype": table.text("dtype", "float32"),
        "batch_size": table.whole("batch_size", 8),
    }

    def make() -> Reward:
        from privalign.rewards.scores import AffineMap
        from privalign.rewards.sequence_classification import Reading, TransformersReward

        return TransformersReward.load(
            model, sensitivity=sensitivity, mapping=AffineMap(*mapping), reading=Reading(**reading), template=template(), **options
        )

    return make


def _head(name: str, table: Table) -> RewardSpec:
    """A head brings its own range and sensitivity."""
    file = table.path("certificate")
    assert file is not None
    sensitivity = load_certificate(file, existing_key()).to_sensitivity()

    def make() -> Reward:
        from privalign.rewards.certified_head import CertifiedHeadReward
        from privalign.rewards.head import HeadReward

        return CertifiedHeadReward(HeadReward.load(file), name=name)

    return RewardSpec(name, "head", sensitivity, make, "certificate")


def _ensemble(name: str, table: Table, others: Mapping[str, RewardSpec]) -> RewardSpec:
    from privalign.preferences.persons import ShardBy
    from privalign.rewards.ensemble import disjoint_shards

    members, names = [], table.names("members")
    if len(set(names)) < len(names):
        raise table.wrong("members", "names a member twice; one model on two shards is no disjoint ensemble")
    for member in names:
        if member not in others:
            raise table.wrong("members", f"'{member}' is no [rewards.*] table with a model; name the members")
        members.append(others[member])
    shards = table.table("shards")
    sharding = ShardBy(shards.choice("by", tuple(item.value for item in ShardBy)))
    relation = Relation(shards.choice("relation", tuple(item.value for item in Relation), "replace"))
    records, reason = shards.whole("records_per_person", 1), shards.text("reason")
    shards.close()
    with table.naming("shards"):
        sensitivity = disjoint_shards(
            [member.sensitivity for member in members], sharding=sharding, relation=relation, records_per_person=records, reason=reason
        )

    def make() -> Reward:
        from privalign.rewards.ensemble import EnsembleReward

        return EnsembleReward([member.make() for member in members], sensitivity, name=name)

    whence = {member.range_from for member in members}
    return RewardSpec(name, "ensemble", sensitivity, make, whence.pop() if len(whence) == 1 else "operator")
