"""Which head made the scores of a file: `FILE.signed.json`, which `score` writes and whoever believes a head's certificate asks for.

A certificate bounds how far the scores *of its weights* move. Beside scores of any other origin it would say nothing, and with
that of a released head the exact best answer would come out as free. So the signature is an HMAC under the installation's key of
the file's content, the column and the certificate's own `mac`. It holds public fields only: the digest of the scores, which is
computed from protected data, enters the HMAC and is not written down.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privalign.errors import InvalidFile, InvalidInput
from privalign.files import replacement
from privalign.secret import existing_key
from privalign.sensitivity import Certificate, load_certificate

SUFFIX = ".signed.json"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class ScoredBy:
    """The head that made a column of scores: the `mac` of its certificate, and whether it was released, so that they are public."""

    certificate: str
    released: bool

    @classmethod
    def of(cls, certificate: Certificate) -> ScoredBy:
        """The head of a signed certificate."""
        assert certificate.mac is not None
        return cls(certificate.mac, certificate.released is not None)


def has_weights(certificate: Certificate) -> bool:
    """Whether a certificate is about the weights of a head or of several, and hence about no other model's scores."""
    return certificate.kind == "head" or certificate.features is not None or certificate.released is not None


def signature_file(file: Path) -> Path:
    """Where the signature of a file of scores lies."""
    return file.with_name(file.name + SUFFIX)


def sign_scores(file: Path, digest: bytes, columns: Mapping[str, ScoredBy]) -> None:
    """Writes the signature of a file, mode 0600: only for scores that this process made, or whose signatures it has checked.

    Args:
        file: of scores; need not be there yet. digest: SHA-256 of its content. columns: by whom each was scored.

    Raises:
        InvalidInput: it cannot be written. InvalidFile: there is no installation key.
    """
    key = existing_key()
    entries = {
        column: {"certificate": by.certificate, "released": by.released, "mac": _mac(key, digest, column, by)}
        for column, by in columns.items()
    }
    target = signature_file(file)
    try:
        with replacement(target, encoding="utf-8") as signature:
            signature.write(json.dumps({"version": _VERSION, "columns": entries}, indent=2) + "\n")
    except OSError as error:
        raise InvalidInput("out", f"{target} cannot be written ({error.strerror}); give a place that has room") from None


def signed_columns(file: Path) -> dict[str, ScoredBy]:
    """The columns of a file whose signature fits its content; empty where it has none.

    Raises:
        InvalidFile: the file cannot be read, its signature is none, or does not fit.
    """
    place = signature_file(file)
    try:
        document = json.loads(place.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError):
        document = None
    key, digest = existing_key(), digest_of(file)
    found = {}
    try:
        if document["version"] != _VERSION:
            raise ValueError
        for column, entry in document["columns"].items():
            by = ScoredBy(str(entry["certificate"]), bool(entry["released"]))
            if not hmac.compare_digest(str(entry["mac"]), _mac(key, digest, column, by)):
                raise ValueError
            found[column] = by
    except (TypeError, KeyError, ValueError, AttributeError):
        problem = f"its signature does not fit: {file.name} or it was changed, or another installation made it (PRIVALIGN_SECRET_FILE)"
        raise InvalidFile(str(place), None, f"{problem}; score the candidates again, or remove it and give no head's certificate") from None
    return found


def check_vouched(path: Path, file: Path, column: str) -> None:
    """Refuses the certificate at `path` beside scores that its head did not make; one that is about no weights vouches for any.

    Raises:
        InvalidInput: `file` is not signed as scored by that head in that column. InvalidFile: a file cannot be read or was changed.
    """
    certificate = load_certificate(path, existing_key())
    if not has_weights(certificate):
        return
    signed = signed_columns(file)
    if signed.get(column) == ScoredBy.of(certificate):
        return
    if not signed:
        reason = f"{file} has no {file.name}{SUFFIX} beside it, as `privalign score` writes it"
    elif column not in signed:
        reason = f"{file} is signed for {', '.join(signed)} and not for {column}"
    else:
        reason = f"{column} of {file} was scored by another head"
    raise InvalidInput("certificate", f"{path} is about scores that its head made, and {reason}; give --head {path}, or score them with it")


def digest_of(file: Path) -> bytes:
    """SHA-256 of a file's content. Of scores it is not public.

    Raises:
        InvalidFile: it cannot be read.
    """
    try:
        with file.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").digest()
    except OSError as error:
        raise InvalidFile(str(file), None, f"cannot be read ({error.strerror}); give a file of scored candidates") from None


def _mac(key: bytes, digest: bytes, column: str, by: ScoredBy) -> str:
    fields: list[Any] = [_VERSION, column, by.certificate, by.released]
    return hmac.digest(key, b"scores" + digest + json.dumps(fields).encode(), "sha256").hex()
