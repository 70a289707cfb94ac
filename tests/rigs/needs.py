"""What a test needs of its machine. Without it the test is skipped, with a reason in one form.

    pytestmark = needs_broker
    jsonschema = module("jsonschema")
    @program("strace")
    def test_...

conftest.py counts the skipped tests by reason at the end of a run.
"""

from __future__ import annotations

import os
import shutil
from typing import Any

import pytest
from rigs import broker, certificates, microphone, nats

from appliance.store.folders import SHARED_MEMORY, is_in_memory


def unless(reason: str) -> pytest.MarkDecorator:
    """Skip a test for this reason; without a reason it runs."""
    return pytest.mark.skipif(bool(reason), reason=reason or "nothing is missing")


def absent(*programs: str, package: str = "") -> str:
    """Reason to skip: which programs are not installed, and the Debian package; "" if none."""
    missing = [name for name in programs if not shutil.which(name, path=PATHS)]
    package = package or " ".join(missing)
    return f"not installed: {' '.join(missing)} (apt install {package})" if missing else ""


def program(*names: str, package: str = "") -> pytest.MarkDecorator:
    """Skip a test on a machine without these programs; `package` is Debian's, if not named so."""
    return unless(absent(*names, package=package))


def require(*names: str, package: str = "") -> None:
    """Skip the test that calls this on a machine without these programs."""
    if reason := absent(*names, package=package):
        pytest.skip(reason)


def module(name: str, package: str = "") -> Any:
    """A module; skips the caller, a test or a whole file, where it is not installed.

    `package` is PyPI's, if it is not named as the module is.
    """
    reason = f"not installed: {name} (pip install {package or name})"
    return pytest.importorskip(name, reason=reason)


PATHS = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
NOT_ROOT = "not root: {} (run the tests as root)"
"""Reason to skip a test that needs root, for what."""

needs_broker = unless(broker.missing())
needs_nats = unless(nats.missing())
needs_openssl = unless(certificates.missing())
needs_fleet = unless(nats.missing() or certificates.missing())
needs_microphone = unless(microphone.missing())
needs_mosquitto_sub = program("mosquitto_sub", package="mosquitto-clients")
needs_ffmpeg = program("ffmpeg")
needs_memory = unless(
    ""
    if is_in_memory(SHARED_MEMORY) and os.access(SHARED_MEMORY, os.W_OK)
    else "no shared memory in which a spool or a log could lie"
)


def needs_root(purpose: str) -> pytest.MarkDecorator:
    """Skip a test for an ordinary user; `purpose` completes "not root: "."""
    return unless(NOT_ROOT.format(purpose) if os.geteuid() else "")
