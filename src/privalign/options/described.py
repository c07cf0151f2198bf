"""Settings as dataclasses whose fields are annotated with an `Option`, and what is made of such a description.

```python
@dataclass(frozen=True)
class Settings:
    n: Annotated[int, Option(whole(), "Candidates.")] = 16
```
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from privalign.errors import InvalidInput, setting
from privalign.options.kinds import Kind

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Option:
    """One setting.

    Args:
        kind: what its value may be. help: one sentence for people, its default included. metavar: how help shows the value.
    """

    kind: Kind
    help: str
    metavar: str | None = None


@cache
def described(settings: type[Any]) -> Mapping[str, Option]:
    """The options of a settings class by the names of their fields, its own before those that it inherits."""
    found: dict[str, Option] = {}
    for owner in settings.__mro__:
        hints = get_type_hints(owner, include_extras=True) if dataclasses.is_dataclass(owner) else {}
        for name in vars(owner).get("__annotations__", {}):
            annotation = hints.get(name)
            option = next((part for part in get_args(annotation) if isinstance(part, Option)), None)
            if get_origin(annotation) is Annotated and option is not None:
                found.setdefault(name, option)
    return found


@cache
def required(settings: type[Any]) -> frozenset[str]:
    """The options without a default."""
    absent = dataclasses.MISSING
    fields: Any = dataclasses.fields(settings)
    return frozenset(field.name for field in fields if field.default is absent and field.default_factory is absent)


def read(settings: type[T], given: Mapping[str, Any], what: str) -> T:
    """Settings from values that were typed or parsed; None means not given.

    Args:
        what: whose options they are, in words, for the error.

    Raises:
        InvalidInput: an option that is unknown, missing, of the wrong type or out of range.
    """
    of: Any = settings
    known = described(of)
    values = {name: value for name, value in given.items() if value is not None}
    for name in values:
        if name not in known:
            raise InvalidInput(setting(name), f"not an option of {what}, which takes {', '.join(map(setting, known))}")
    for name in known:
        if name not in values and name in required(of):
            raise missing(name)
    return settings(**{name: _value(name, known[name].kind, value) for name, value in values.items()})


def part(settings: type[T], of: Any) -> T:
    """Settings of a class from those of one that inherits from it and has more."""
    fields: Any = dataclasses.fields(settings)  # type: ignore[arg-type]
    return settings(**{field.name: getattr(of, field.name) for field in fields})


def missing(name: str) -> InvalidInput:
    """What is raised where a setting without a default is not given."""
    return InvalidInput(setting(name), "missing, and it has no default; give it")


def _value(name: str, kind: Kind, value: Any) -> Any:
    try:
        return kind.read(value)
    except ValueError as error:
        raise InvalidInput(setting(name), str(error)) from None
