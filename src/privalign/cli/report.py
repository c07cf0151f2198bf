"""`report`: studies as figures, tables and one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from privalign.cli import options
from privalign.cli.output import bars, print_json

Studies = Annotated[
    list[Path],
    typer.Argument(help="What `evaluate` and `study` wrote, or folders with it.", metavar="STUDY.json… | RUN_DIR", show_default=False),
]
Out = Annotated[Path, typer.Option("--out", help="Folder for the page, the figures and the tables.", metavar="DIR", show_default=False)]


def report(
    studies: Studies,
    out: Out,
    json: options.Json = False,
) -> None:
    """Figures (PNG, SVG), tables (Markdown, CSV, LaTeX) and one HTML page of studies: not a private release."""
    from privalign.report.build import read_studies, stale_studies, write_report
    from privalign.studies.study import NOTICE

    read, left_out = read_studies(studies), [str(path) for path in stale_studies(studies)]
    with bars() as progress:
        paths = write_report(read, out, lambda done, total: progress("drawing", done, total))
    if json:
        print_json(
            {
                "notice": NOTICE,
                "page": str(paths[0]),
                "files": [str(path) for path in paths],
                "studies": [{"study": study.kind, "title": study.title, "rows": len(study.rows)} for study in read],
                "left_out": left_out,
            }
        )
    else:
        typer.echo(NOTICE)
        if left_out:
            typer.echo(f"left out, no longer of the run's recipe: {', '.join(left_out)}")
        typer.echo(f"{len(read)} {'study' if len(read) == 1 else 'studies'}, {len(paths)} files; open {paths[0]}")
