"""How a request and an answer are shown to a reward model: as messages, as one templated text, or as a pair of texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from privalign.errors import InvalidInput, MissingDependency
from privalign.rewards.protocol import ScorerUntouched
from privalign.types import Candidate, Message, Request

OASST_TEMPLATE = (
    "{% for message in messages %}"
    "{{ {'system': '<|system|>', 'user': '<|prompter|>', 'assistant': '<|assistant|>'}[message['role']] }}"
    "{{ message['content'] }}<|endoftext|>"
    "{% endfor %}"
)
"""The turns that `OpenAssistant/oasst-rm-2.1-pythia-1.4b-epoch-2.5` was trained on; its tokenizer carries no template."""


def conversation(request: Request, answer: str) -> list[dict[str, Any]]:
    """The request's turns, all of them with all their fields, and the answer as the assistant's last turn.

    Raises:
        ScorerUntouched: a turn holds something that is no text.
    """
    turns = [{**turn.fields, "role": turn.role, "content": _text(turn)} for turn in request.messages]
    return [*turns, {"role": "assistant", "content": answer}]


def prompt_text(request: Request) -> str:
    """The prompt for models that take a prompt and an answer: a lone user turn as it is, else all turns with their roles.

    Tool calls of earlier turns are written as those of an answer are.

    Raises:
        ScorerUntouched: a turn holds something that is no text.
    """
    if len(request.messages) == 1 and request.messages[0].role == "user":
        return _text(request.messages[0])
    return "\n\n".join(f"{turn.role}: {_with_calls(turn)}" for turn in request.messages)


def _text(turn: Message) -> str:
    try:
        return turn.text
    except InvalidInput as error:
        raise ScorerUntouched(f"{error}; nothing was scored", 422) from None


def _with_calls(turn: Message) -> str:
    try:
        return Candidate(_text(turn), tool_calls=tuple(turn.fields.get("tool_calls") or ())).scored_text
    except (AttributeError, TypeError, ValueError):
        raise ScorerUntouched("messages: the tool calls of a turn are malformed; nothing was scored", 422) from None


class ChatTemplate:
    """A reward model's chat template (Jinja, as in `tokenizer_config.json`), rendered here so that texts travel in batches.

    Args:
        source: the template. special_tokens: what it names, such as `bos_token` and `eos_token`.

    Raises:
        InvalidInput: the template is not valid Jinja. MissingDependency: jinja2 is not installed.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str] | None = None) -> None:
        try:
            from jinja2 import StrictUndefined, TemplateSyntaxError
            from jinja2.sandbox import ImmutableSandboxedEnvironment
        except ImportError:
            raise MissingDependency("jinja2 is not installed; get it with: pip install 'privalign[rewards]'") from None
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"], undefined=StrictUndefined
        )
        environment.globals |= {"raise_exception": _refuse, "tools": None, "documents": None, "add_generation_prompt": False}
        environment.globals |= dict(special_tokens or {})
        try:
            self._template = environment.from_string(source)
        except TemplateSyntaxError as error:
            raise InvalidInput("template", f"is not a Jinja template ({error.message}); copy the reward model's chat_template") from None

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The conversation as the text that the reward model was trained on.

        Raises:
            ScorerUntouched: the template has no way to write this conversation (an unknown role, say).
        """
        try:
            return self._template.render(messages=list(messages))
        except Exception:
            raise ScorerUntouched("the reward model's chat template cannot write this conversation; nothing was scored", 422) from None


def _refuse(message: str) -> None:
    raise ValueError(message)
