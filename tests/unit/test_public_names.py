"""The flat public interface: what it holds, and that importing it is cheap."""

from __future__ import annotations

import subprocess
import sys

import privalign

HEAVY = ("scipy", "opendp", "numba", "sqlalchemy", "dp_accounting", "torch", "pyarrow", "matplotlib", "sklearn", "xllamacpp")


def modules_after(code: str) -> set[str]:
    script = f"import sys\n{code}\nsys.stdout.write('\\n' + ' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


def test_every_public_name_exists() -> None:
    for name in privalign.__all__:
        assert getattr(privalign, name) is not None
    assert dir(privalign) == privalign.__all__


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(privalign, "PrivBest")


def test_import_is_cheap() -> None:
    assert modules_after("import privalign").isdisjoint(HEAVY)


def test_help_is_cheap() -> None:
    code = "import privalign.cli\nsys.argv = ['privalign', '--help']\ntry:\n    privalign.cli.main()\nexcept SystemExit:\n    pass"
    assert modules_after(code).isdisjoint(HEAVY)
