"""Where things lie in a checkout, and beside it; scripts use it on machines without pytest, too."""

import os
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
ROOT = TESTS.parent
GOLDEN = TESTS / "golden"
SPEECH = TESTS / "speech"
BUILT_IN = ROOT / "appliance" / "bundles" / "tiny.en"
"""The built-in model, which scripts/setup.sh makes."""
NO_MODEL = "no built-in model: run scripts/test, which makes it"
SHARED = Path(os.environ.get("ROOMSCRIBE_SHARED") or ROOT.parent / "shared")
"""Recordings, models and published values that are too large for the repository, or not ours."""


def require_model() -> None:
    """Skip the test, or the module being imported, without the built-in model.

    Called where one is opened: by `rigs.models.built_in`, `rigs.daemon.daemon` and
    `rigs.command.roomscribe`. Other tests name the mark `rigs.needs.needs_model`.
    """
    if not (BUILT_IN / "bundle.json").is_file():
        import pytest

        pytest.skip(NO_MODEL, allow_module_level=True)


def shared(*parts: str) -> Path:
    """A file or folder of SHARED; skips the test, or the module being imported, without it."""
    path = SHARED.joinpath(*parts)
    if not path.exists():
        import pytest

        reason = f"no recordings: {'/'.join(parts)} (set ROOMSCRIBE_SHARED)"
        pytest.skip(reason, allow_module_level=True)
    return path


def environment(**more: str) -> dict[str, str]:
    """For `python -m PACKAGE.MODULE` of appliance/, tests/ and scripts/ in another process."""
    folders = (ROOT, TESTS, ROOT / "scripts")
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders)), **more}
