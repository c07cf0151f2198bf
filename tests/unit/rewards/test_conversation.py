"""What of a conversation reaches a reward model: every turn, with its role."""

from __future__ import annotations

import pytest

from privalign.errors import InvalidInput
from privalign.rewards.conversation import OASST_TEMPLATE, ChatTemplate, conversation, prompt_text
from privalign.rewards.protocol import ScorerUntouched
from privalign.types import Message, Request

CALLS = ({"id": "7", "type": "function", "function": {"name": "find", "arguments": '{"q": 1}'}},)
LONG = Request(
    (
        Message("system", "s"), Message("user", ({"type": "text", "text": "a"}, {"type": "text", "text": "b"})),
        Message("assistant", None, {"tool_calls": CALLS}), Message("tool", "found", {"tool_call_id": "7"}), Message("user", "c"),
    )
)  # fmt: skip
IMAGE = Request((Message("user", ({"type": "image_url"},)), Message("user", "x")))


def test_messages_keep_every_turn_and_field() -> None:
    turns = conversation(LONG, "answer")
    assert [turn["role"] for turn in turns] == ["system", "user", "assistant", "tool", "user", "assistant"]
    assert turns[1]["content"] == "a\nb"
    assert turns[2]["tool_calls"] == CALLS
    assert turns[-1] == {"role": "assistant", "content": "answer"}


def test_the_prompt_of_a_pair_keeps_every_turn() -> None:
    assert prompt_text(Request.of_prompt("{x}")) == "{x}"
    assert prompt_text(LONG) == ('system: s\n\nuser: a\nb\n\nassistant: [{"arguments":{"q":1},"name":"find"}]\n\ntool: found\n\nuser: c')
    assert prompt_text(Request((Message("system", "x"),))) == "system: x"


def test_what_cannot_be_read_leaves_the_scorer_untouched() -> None:
    for read in (prompt_text, lambda request: conversation(request, "y")):
        with pytest.raises(ScorerUntouched, match="text only"):
            read(IMAGE)
    broken = Request((Message("assistant", "x", {"tool_calls": [3]}), Message("user", "y")))
    with pytest.raises(ScorerUntouched, match="malformed"):
        prompt_text(broken)


def test_a_template_writes_what_the_model_was_trained_on() -> None:
    turns = conversation(Request.of_prompt("hi {{ x }}"), "yo")
    assert ChatTemplate(OASST_TEMPLATE).render(turns) == "<|prompter|>hi {{ x }}<|endoftext|><|assistant|>yo<|endoftext|>"
    own = ChatTemplate(
        "{% if tools %}T{% endif %}{{ bos }}{% for m in messages %}{% if loop.index > 1 %}{% continue %}{% endif %}{{ m.content | trim }}"
        "{% endfor %}{% if add_generation_prompt %}G{% endif %}",
        {"bos": "<s>"},
    )
    assert own.render([{"role": "user", "content": " x "}, {"role": "user", "content": "y"}]) == "<s>x"


def test_a_template_that_fails_says_nothing_of_the_text() -> None:
    for source in (
        "{{ raise_exception('no ' + messages[0].content) }}",
        "{{ unknown }}",
        "{{ messages[9].content }}",
        "{{ ().__class__ }}",
    ):
        with pytest.raises(ScorerUntouched) as caught:
            ChatTemplate(source).render([{"role": "user", "content": "private"}])
        assert "private" not in str(caught.value)
    with pytest.raises(InvalidInput, match="template"):
        ChatTemplate("{% for %}")
