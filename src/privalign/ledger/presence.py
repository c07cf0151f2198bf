"""Whether a ledger is there, without making one: `Ledger` makes file and tables when it is first used."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import create_engine, make_url
from sqlalchemy.exc import SQLAlchemyError

from privalign.errors import InvalidInput
from privalign.ledger import migrations
from privalign.ledger.database import pin_session
from privalign.ledger.failures import explain


def is_made(url: str) -> bool:
    """Whether the database at `url` holds a ledger, of whatever version. Nothing is written there.

    Args:
        url: as `Ledger` takes it and has found right.

    Raises:
        InvalidInput: no ledger could be made there, for want of a folder. LedgerFailed: the database is away or damaged.
    """
    parts = make_url(url)
    name = parts.render_as_string(hide_password=True)
    if parts.get_backend_name() == "sqlite":
        file = Path(parts.database or "")
        if not file.parent.is_dir():
            raise InvalidInput("ledger", f"{file.parent} is not a folder; make it, or correct the URL")
        if not file.exists() or (file.is_file() and file.stat().st_size == 0):
            return False
        waiting: dict[str, Any] = {"timeout": 30.0}
        parts = make_url(f"sqlite:///file:{quote(str(file.resolve()))}?mode=ro&uri=true")
    else:
        waiting = {"connect_timeout": 30, "client_encoding": "utf8"}
        parts = parts.set(drivername="postgresql+psycopg")
    engine = create_engine(parts, hide_parameters=True, connect_args=waiting)
    if parts.get_backend_name() == "postgresql":
        pin_session(engine, 30.0)  # also here: a time-out of the server's may be shorter than any question
    try:
        with engine.connect() as connection:
            return migrations.current(connection) is not None
    except SQLAlchemyError as error:
        raise explain(error, name) from None
    finally:
        engine.dispose()
