"""Marks that skip a test if the machine lacks something, with a reason in one form.

    pytestmark = needs_broker
    jsonschema = module("jsonschema")
    @program("strace")
    def test_...

conftest.py counts the skipped tests by reason at the end of a run.
"""

import os
import shutil
from typing import Any

import pytest
from rigs import broker, certificates, microphone, nats
from rigs.checkout import BUILT_IN, NO_MODEL

from appliance.model.bundle import MANIFEST
from appliance.store.folders import SHARED_MEMORY, is_in_memory


def unless(reason: str) -> pytest.MarkDecorator:
    """Return the mark that skips a test for this reason; with an empty reason it runs."""
    return pytest.mark.skipif(bool(reason), reason=reason or "nothing is missing")


def absent(*programs: str, package: str = "") -> str:
    """Return which programs are missing and their Debian package; "" if none is."""
    missing = [name for name in programs if not shutil.which(name, path=PATHS)]
    package = package or " ".join(missing)
    return f"not installed: {' '.join(missing)} (apt install {package})" if missing else ""


def program(*names: str, package: str = "") -> pytest.MarkDecorator:
    """Return the mark that skips a test without these programs; `package` is Debian's name."""
    return unless(absent(*names, package=package))


def require(*names: str, package: str = "") -> None:
    """Skip the calling test if one of these programs is missing."""
    if reason := absent(*names, package=package):
        pytest.skip(reason)


def module(name: str, package: str = "") -> Any:
    """Return a module; skip the calling test or file if it is not installed.

    package: its name on PyPI, if that is not the module's.
    """
    reason = f"not installed: {name} (pip install {package or name})"
    return pytest.importorskip(name, reason=reason)


PATHS = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
NOT_ROOT = "not root: {} (run the tests as root)"
"""Reason to skip a test that needs root, for what."""

needs_model = unless("" if (BUILT_IN / MANIFEST).is_file() else NO_MODEL)
needs_broker = unless(broker.missing())
needs_nats = unless(nats.missing())
needs_openssl = unless(certificates.missing())
needs_fleet = unless(nats.missing() or certificates.missing())
needs_microphone = unless(microphone.missing())
needs_ffmpeg = program("ffmpeg")
needs_memory = unless(
    ""
    if is_in_memory(SHARED_MEMORY) and os.access(SHARED_MEMORY, os.W_OK)
    else "no shared memory in which a spool or a log could lie"
)


def needs_root(purpose: str) -> pytest.MarkDecorator:
    """Return the mark that skips a test for an ordinary user; `purpose` completes "not root: "."""
    return unless(NOT_ROOT.format(purpose) if os.geteuid() else "")
