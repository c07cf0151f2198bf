"""The installation's key: signs certificates and idempotency keys. One per deployment, shared by its replicas."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from privalign.errors import InvalidFile
from privalign.files import put_first

KEY_BYTES = 32
VARIABLE = "PRIVALIGN_SECRET_FILE"


def secret_path() -> Path:
    """`PRIVALIGN_SECRET_FILE`, else `$XDG_CONFIG_HOME/privalign/secret`, else `~/.config/privalign/secret`."""
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named)
    config = os.environ.get("XDG_CONFIG_HOME")
    return (Path(config) if config else Path.home() / ".config") / "privalign" / "secret"


def installation_key() -> bytes:
    """The key, made on first use where PRIVALIGN_SECRET_FILE does not say which file it is.

    Raises:
        InvalidFile: it cannot be read or made, is too short to be a key, or PRIVALIGN_SECRET_FILE names no file: a slip in the
            variable must not make another installation.
    """
    path = secret_path()
    if os.environ.get(VARIABLE) and not path.exists():
        problem = f"no installation key, and {VARIABLE} says that it is there"
        raise InvalidFile(str(path), None, f"{problem}; correct the variable, or make a key there with `privalign key create`")
    return make_installation_key()


def make_named_key() -> None:
    """Makes the key that PRIVALIGN_SECRET_FILE names, where it is not there. Without the variable one is made on first use.

    Raises:
        InvalidFile: as `make_installation_key`.
    """
    if os.environ.get(VARIABLE):
        make_installation_key()


def make_installation_key() -> bytes:
    """The key, made with mode 0600 where there is none. Two processes that make it at once agree on one.

    Raises:
        InvalidFile: it cannot be read or made, or is too short to be a key.
    """
    path = secret_path()
    try:
        if not path.exists():
            _make(path)
        key = bytes.fromhex(path.read_text().strip())
    except OSError as error:
        raise InvalidFile(str(path), None, f"the installation key cannot be read or made ({error.strerror}); set {VARIABLE}") from None
    except ValueError:
        raise InvalidFile(str(path), None, "the installation key is not hexadecimal; restore it, or remove it and fit again") from None
    if len(key) < KEY_BYTES:
        raise InvalidFile(str(path), None, "the installation key is too short; restore it, or remove it and fit again")
    return key


def existing_key() -> bytes:
    """The key, to verify what it signed. Not made where it is missing: a new one would fit nothing.

    Raises:
        InvalidFile: there is none, or as `installation_key`.
    """
    path = secret_path()
    if not path.exists():
        problem = "no installation key, so no certificate can be verified"
        raise InvalidFile(str(path), None, f"{problem}; set {VARIABLE} to the one of the installation that signed it")
    return installation_key()


def _make(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    put_first(path, secrets.token_hex(KEY_BYTES).encode())  # where another process was first, its key is the key
