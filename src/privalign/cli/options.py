"""The options that several commands share, declared once: name, type and help of the contract."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Mechanism = Annotated[
    str, typer.Argument(help="bon, privbon, privbon-gaussian, itp, itp-reuse, privitp or base.", show_default=False, metavar="MECHANISM")
]
N = Annotated[int | None, typer.Option("--n", help="Candidates (phase 1 of itp and privitp). Default 16.", show_default=False)]
N2 = Annotated[int | None, typer.Option("--n2", help="Most phase-2 candidates. Default n.", show_default=False)]
_RANGE = "Public range LO,HI that rewards are clipped to."
Range = Annotated[str | None, typer.Option("--range", help=f"{_RANGE} Default 0,1.", metavar="LO,HI", show_default=False)]
RequiredRange = Annotated[str, typer.Option("--range", help=_RANGE, metavar="LO,HI", show_default=False)]
FaithfulRange = Annotated[
    str | None,
    typer.Option("--range", help=f"{_RANGE}  [required, except by --protocol authors]", metavar="LO,HI", show_default=False),
]
SensitivityOption = Annotated[
    str | None,
    typer.Option(
        "--sensitivity",
        help="How far one person moves a reward; 'range' assumes nothing. Default range.",
        metavar="X|range",
        show_default=False,
    ),
]
Certificate = Annotated[
    str | None, typer.Option("--certificate", help="Certificate file that proves the sensitivity.", metavar="FILE", show_default=False)
]
Scale = Annotated[
    float | None,
    typer.Option("--scale", help="Noise scale of privbon and privbon-gaussian.  [required by them, or calibrated]", show_default=False),
]
Epsilon = Annotated[
    float | None, typer.Option("--epsilon", help="Calibrate the noise to this ε per query, instead of giving it.", show_default=False)
]
Beta = Annotated[float | None, typer.Option("--beta", help="Regularisation of itp and privitp. Default 0.05.", show_default=False)]
SigmaX = Annotated[
    float | None, typer.Option("--sigma-x", help="Noise of privitp's phase 1.  [required by it, or calibrated]", show_default=False)
]
SigmaZ = Annotated[
    float | None, typer.Option("--sigma-z", help="Noise of privitp's phase 2.  [required by it, or calibrated]", show_default=False)
]
Tail = Annotated[float | None, typer.Option("--tail", help="L of privitp. Default √(2 ln(n2/0.01)).", show_default=False)]
Delta = Annotated[float | None, typer.Option("--delta", help="δ of phase 1, per query. Default 1e-6.", show_default=False)]
From = Annotated[
    Path | None, typer.Option("--from", help="JSONL: one set of options a line; one JSON document a line comes out.", show_default=False)
]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
