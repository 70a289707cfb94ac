"""Certificates of an authority of our own, by the openssl command; made anew for each test run."""

import shutil
import subprocess
from pathlib import Path


def missing() -> str:
    """What to install first; empty when nothing."""
    return "" if shutil.which("openssl") else "not installed: openssl (apt install openssl)"


class Authority:
    """Signs what it is asked to; its own certificate is `certificate`."""

    def __init__(self, folder: Path, name: str = "house") -> None:
        self._folder, self._name = folder, name
        self._key = folder / f"{name}-ca.key"
        self.certificate = folder / f"{name}-ca.crt"
        _openssl(
            *("req", "-x509", *_NEW_KEY, "-nodes", "-days", "2", "-subj", f"/CN={name} authority"),
            *("-keyout", self._key, "-out", self.certificate),
            *("-addext", "basicConstraints=critical,CA:TRUE"),
            *("-addext", "keyUsage=critical,keyCertSign,cRLSign"),
        )

    def sign(self, name: str, alternative: str = "") -> tuple[Path, Path]:
        """A certificate for `name` and its key; `alternative` is such as IP:127.0.0.1."""
        key, request, certificate, extra = (
            self._folder / f"{self._name}-{name}.{end}" for end in ("key", "csr", "crt", "ext")
        )
        _openssl(
            *("req", "-new", *_NEW_KEY, "-nodes", "-subj", f"/CN={name}"),
            *("-keyout", key, "-out", request),
        )
        extra.write_text(f"subjectAltName={alternative or f'DNS:{name}'}\n", encoding="utf-8")
        _openssl(
            *("x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self._key),
            *("-CAcreateserial", "-days", "2", "-extfile", extra, "-out", certificate),
        )
        return certificate, key


_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")


def _openssl(*words: str | Path) -> None:
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)
