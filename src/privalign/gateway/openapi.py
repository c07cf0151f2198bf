"""The parts of the OpenAPI document that no annotation states: bodies are read by hand, within limits."""

from __future__ import annotations

from typing import Any

from privalign.gateway.requests import LARGEST_SEED, MOST_LOGPROBS

ERROR: dict[str, Any] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
MODEL: dict[str, Any] = {
    "type": "object",
    "required": ["id", "object", "created", "owned_by"],
    "properties": {
        "id": {"type": "string"},
        "object": {"const": "model"},
        "created": {"type": "integer"},
        "owned_by": {"type": "string"},
    },
}
MODELS: dict[str, Any] = {
    "type": "object",
    "required": ["object", "data"],
    "properties": {"object": {"const": "list"}, "data": {"type": "array", "items": MODEL}},
}
STATUS: dict[str, Any] = {
    "type": "object",
    "required": ["status"],
    "properties": {
        "status": {"type": "string", "description": "ok, ready, not ready or stopping"},
        "away": {"type": "array", "items": {"enum": ["ledger", "policy", "reward"]}},
        "models": {
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "required": ["status"],
                "properties": {"status": {"enum": ["ready", "not ready"]}, "away": {"type": "array", "items": {"type": "string"}}},
            },
        },
    },
}
_PRIVACY: dict[str, Any] = {
    "type": "object",
    "description": "What the answers cost: the worst case of all of them together.",
    "required": ["mechanism", "epsilon", "delta", "account", "remaining", "replayed"],
    "properties": {
        "mechanism": {"type": "string"},
        "epsilon": {"type": ["number", "null"]},
        "delta": {"type": "number"},
        "account": {"type": "string"},
        "remaining": {"type": ["object", "null"], "properties": {"epsilon": {"type": "number"}, "delta": {"type": "number"}}},
        "replayed": {"type": "boolean"},
        "release": {
            "type": "object",
            "description": "Where the head was itself released with differential privacy: on which terms. Answers then cost nothing more.",
            "properties": {
                "epsilon": {"type": "number"},
                "delta": {"type": "number"},
                "relation": {"type": "string"},
                "records_per_person": {"type": "integer"},
                "account": {"type": "string"},
                "dataset": {"type": ["string", "null"]},
                "guarantee": {"type": "string"},
            },
        },
    },
}
CHAT_RESPONSE: dict[str, Any] = {
    "type": "object",
    "required": ["id", "object", "created", "model", "choices", "usage", "privalign"],
    "properties": {
        "id": {"type": "string"},
        "object": {"const": "chat.completion"},
        "created": {"type": "integer"},
        "model": {"type": "string"},
        "choices": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["index", "message", "finish_reason", "logprobs"],
                "properties": {
                    "index": {"type": "integer"},
                    "message": {"type": "object", "required": ["role", "content"]},
                    "finish_reason": {"type": "string"},
                    "logprobs": {"type": ["object", "null"]},
                },
            },
        },
        "usage": {"type": ["object", "null"]},
        "privalign": _PRIVACY,
    },
}
_TOOL: dict[str, Any] = {
    "type": "object",
    "properties": {
        "type": {"type": ["string", "null"], "description": "A function without one."},
        "function": {
            "type": "object",
            "required": ["name"],
            "properties": {"name": {"type": "string"}, "description": {"type": ["string", "null"]}},
        },
    },
}
EVENT: dict[str, Any] = {
    "type": "object",
    "description": "A server-sent event: `data` is a chunk as JSON, or [DONE].",
    "required": ["data"],
    "properties": {"data": {"type": "string"}},
}


def json(schema: dict[str, Any], description: str) -> dict[str, Any]:
    """A response, or a body, of this schema."""
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Error responses of these statuses."""
    return {status: json(ERROR, "An error; nothing was answered.") for status in statuses}


def chat_request(most_n: int) -> dict[str, Any]:
    """The body of a request for at most so many answers."""
    return {
        "type": "object",
        "required": ["model", "messages"],
        "properties": {
            "model": {"type": "string"},
            "messages": {
                "type": "array",
                "minItems": 1,
                "items": {
                    "type": "object",
                    "required": ["role"],
                    "properties": {
                        "role": {"type": "string"},
                        "content": {"type": ["string", "array", "null"], "items": {"type": "object"}},
                        "name": {"type": ["string", "null"]},
                        "tool_call_id": {"type": ["string", "null"]},
                        "tool_calls": {"type": ["array", "null"], "items": _TOOL},
                    },
                },
            },
            "n": {
                "type": ["integer", "null"],
                "minimum": 1,
                "maximum": most_n,
                "description": "Answers, each selected and charged on its own.",
            },
            "stream": {"type": ["boolean", "null"]},
            "stream_options": {"type": ["object", "null"], "properties": {"include_usage": {"type": ["boolean", "null"]}}},
            "temperature": {"type": ["number", "null"], "minimum": 0},
            "top_p": {"type": ["number", "null"], "minimum": 0, "maximum": 1},
            "stop": {"type": ["string", "array", "null"], "minLength": 1, "items": {"type": "string", "minLength": 1}},
            "max_tokens": {"type": ["integer", "null"], "minimum": 1, "maximum": 2**63 - 1},
            "max_completion_tokens": {"type": ["integer", "null"], "minimum": 1, "maximum": 2**63 - 1},
            "seed": {"type": ["integer", "null"], "minimum": -LARGEST_SEED, "maximum": LARGEST_SEED},
            "logprobs": {"type": ["boolean", "null"]},
            "top_logprobs": {"type": ["integer", "null"], "minimum": 0, "maximum": MOST_LOGPROBS},
            "tools": {"type": ["array", "null"], "items": _TOOL},
            "tool_choice": {
                "type": ["string", "object", "null"],
                "description": "none, auto, required, or a function among `tools`. A model that does not keep it answers 400, uncharged.",
            },
            "response_format": {"type": ["object", "null"]},
            "logit_bias": {"type": ["object", "null"]},
            "presence_penalty": {"type": ["number", "null"]},
            "frequency_penalty": {"type": ["number", "null"]},
            "user": {"type": ["string", "null"]},
        },
    }
