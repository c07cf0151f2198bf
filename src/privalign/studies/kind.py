"""What a study is made of: options, what runs them, what people see of its rows. One file a study holds all of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from privalign.candidates.scored import ScoredPrompts
from privalign.options import Option, choice, real, several, whole
from privalign.sensitivity import Sensitivity
from privalign.studies.panels import Panel
from privalign.studies.study import Study

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Source:
    """What a study is about: scored and graded prompts, the public range of their rewards with its Δ, and where they come from."""

    blocks: Sequence[ScoredPrompts]
    sensitivity: Sensitivity
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @property
    def pools(self) -> list[NDArray[np.float64]]:
        """The rewards of each prompt that has any."""
        return [
            block.rewards[start:end]
            for block in self.blocks
            for start, end in zip(block.offsets[:-1], block.offsets[1:], strict=True)
            if end > start
        ]


@dataclass(frozen=True, slots=True)
class StudyKind:
    """One study.

    Args:
        name: on the command line, and `kind` of a recipe's table. help: one sentence for people.
        options: the class of its options, annotated (`privalign.options`).
        run: from a source and options to the document.
        columns: those that people see in the terminal, by the kind of document; the document has all.
        panels: its figures, by the kind of document; one without any gets its table alone.
    """

    name: str
    help: str
    options: type
    run: Callable[[Source, Any, Progress], Study]
    columns: Mapping[str, tuple[str, ...]]
    panels: Mapping[str, tuple[Panel, ...]] = field(default_factory=dict)


# options that several studies have, with one meaning
SIGMA_WORDS = "Noise σ in reward units; σ_X = σ_Z = σ/2."
SIGMAS_WORDS = "Noise σ in reward units, comma-separated; σ_X = σ_Z = σ/2."
N_GRID_WORDS = "Candidates n, comma-separated."
Candidates = Annotated[int, Option(whole(), "Candidates (phase 1 of itp and privitp). Default 16.")]
Beta = Annotated[float, Option(real(above=0), "Regularisation of itp and privitp. Default 0.05.")]
Sigma = Annotated[float, Option(real(above=0), SIGMA_WORDS)]
Sigmas = Annotated[tuple[float, ...], Option(several(real(above=0)), SIGMAS_WORDS)]
NGrid = Annotated[tuple[int, ...], Option(several(whole()), N_GRID_WORDS)]
Betas = Annotated[tuple[float, ...], Option(several(real(above=0)), "β to choose from, comma-separated.")]
Simulated = Annotated[int, Option(whole(), "Queries simulated for E[t].")]
Seed = Annotated[int, Option(whole(0), "Default 0.")]
Protocol = Annotated[str, Option(choice("faithful", "authors"), "authors: the published accounting, σ in z-scores.", "faithful|authors")]
