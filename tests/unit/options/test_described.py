"""Settings that are described once: what is read from values, what the command line makes of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from privalign.cli.described import parameters
from privalign.cli.spelling import Command, as_option, spell_as_options
from privalign.errors import InvalidInput
from privalign.options import Option, described, missing, part, read, real, required, several, whole


@dataclass(frozen=True, kw_only=True)
class Base:
    seed: Annotated[int, Option(whole(0), "Seed.")] = 0
    made: int = 1  # of no option


@dataclass(frozen=True, kw_only=True)
class Settings(Base):
    sigma_x: Annotated[float, Option(real(above=0), "Noise.")]
    sizes: Annotated[tuple[int, ...], Option(several(whole()), "Sizes.", "N,N")] = (1,)


def test_own_options_come_before_those_that_are_inherited() -> None:
    assert list(described(Settings)) == ["sigma_x", "sizes", "seed"]
    assert required(Settings) == {"sigma_x"}
    assert part(Base, Settings(sigma_x=1.0, seed=3)) == Base(seed=3)


def test_what_is_given_is_read_and_the_rest_is_default() -> None:
    assert read(Settings, {"sigma_x": "2", "sizes": "4,8", "seed": None}, "study x") == Settings(sigma_x=2.0, sizes=(4, 8))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "sigma_x: missing, and it has no default; give it"),
        ({"sigma_x": 1, "noise": 2}, "noise: not an option of study x, which takes sigma_x, sizes, seed"),
        ({"sigma_x": 0}, "sigma_x: 0.0 is not a finite number above 0"),
        ({"sigma_x": 1, "made": 2}, "made: not an option of study x, which takes sigma_x, sizes, seed"),
    ],
)
def test_what_is_wrong_names_the_setting_and_is_spelled_by_who_shows_it(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read(Settings, given, "study x")
    assert str(caught.value) == said
    caught.value.spell(as_option)
    assert str(caught.value) == said.replace("sigma_x", "--sigma-x").replace("noise:", "--noise:").replace("made:", "--made:").replace(
        "sizes", "--sizes"
    ).replace("seed", "--seed")


def test_a_field_that_is_an_option_of_the_command_is_spelled_and_no_other() -> None:
    mine, other = InvalidInput("sigma_x", "wrong"), InvalidInput("certificate", "wrong")
    for error in (mine, other):
        spell_as_options(error, ["sigma_x"])
    assert (str(mine), str(other)) == ("--sigma-x: wrong", "certificate: wrong")
    mine.rename("file: [table] sigma_x")
    assert str(mine) == "file: [table] sigma_x: wrong"


def test_a_command_line_of_a_description() -> None:
    app, given = typer.Typer(rich_markup_mode=None), {}

    def command(**values: Any) -> None:
        given.update(values)
        if values["seed"] == 7:
            raise missing("sizes")

    import inspect

    vars(command)["__signature__"] = inspect.Signature(parameters(Settings))
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters(Settings)}
    app.command(cls=Command)(command)
    runner = CliRunner()
    assert runner.invoke(app, ["--sigma-x", "2", "--sizes", "1,2"]).exit_code == 0
    assert given == {"sigma_x": 2.0, "sizes": "1,2", "seed": None}
    assert "Missing option '--sigma-x'" in runner.invoke(app, []).output
    assert "--sizes N,N" in runner.invoke(app, ["--help"]).output
    assert str(runner.invoke(app, ["--sigma-x", "2", "--seed", "7"]).exception) == "--sizes: missing, and it has no default; give it"
    twice = runner.invoke(app, ["--sigma-x", "2", "--sigma-x", "3"])
    assert "--sigma-x: given twice" in str(twice.exception)
