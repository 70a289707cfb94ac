"""Password and TLS of the connection to the broker, and what goes wrong with them.

Secrets come from files only, never from the configuration or the environment.
"""

from __future__ import annotations

import os
import ssl
from pathlib import Path

from appliance.config import MqttSettings
from appliance.errors import ConfigError
from appliance.system import find_credential, read_secret

PASSWORD_CREDENTIAL = "roomscribe.mqtt-password"
KEY_CREDENTIAL = "roomscribe.mqtt-key"
"""Names, among systemd's credentials, of the password and of our certificate's private key."""


def read_password(settings: MqttSettings) -> str | None:
    """The broker's password: of mqtt.password_file, else of systemd's credential, else None.

    A line end behind it does not belong to it. Raises ConfigError when the file that was asked for
    cannot be read or is empty.
    """
    return read_secret(
        settings.password_file, PASSWORD_CREDENTIAL, "mqtt.password_file", "the broker's password"
    )


def tls_context(settings: MqttSettings) -> ssl.SSLContext | None:
    """How to encrypt, None for not at all: TLS 1.2 or newer, certificate and host name checked.

    Reads the files anew at every call, so that a renewed certificate is used by the next
    connection. Raises ConfigError for a file that is missing or not what it should be.
    """
    if not settings.tls:
        return None
    ca_file = _readable(settings.ca_file, "ca_file")
    try:
        secure = ssl.create_default_context(cafile=ca_file)
    except (ssl.SSLError, OSError) as error:
        raise _unusable("ca_file", "certificates (PEM)", settings.ca_file, error) from error
    secure.minimum_version = ssl.TLSVersion.TLSv1_2
    if settings.cert_file:
        _load_certificate(settings, secure)
    return secure


def explain_tls_error(settings: MqttSettings, error: BaseException | None) -> str:
    """One line about a connection that failed for its encryption; empty for any other failure."""
    where = f"broker {settings.host}:{settings.port}"
    if isinstance(error, ssl.SSLCertVerificationError):
        why = error.verify_message.rstrip(".")
        return (
            f"{where} shows a certificate that is not to be trusted ({why}); let mqtt.ca_file be "
            "the authority that signed it, and mqtt.host a name in it"
        )
    if isinstance(error, ssl.SSLError):
        return (
            f"{where} does not agree on TLS ({_reason(error)}); see that mqtt.port is its TLS "
            "port, and whether it asks for mqtt.cert_file"
        )
    return ""


def tls_hint(settings: MqttSettings) -> str:
    """What may be behind a connection that breaks before the broker has answered.

    With TLS 1.3 a broker refuses our certificate only when the connection stands.
    """
    if not settings.tls:
        return ""
    if settings.cert_file:
        return " before its answer: does it trust the authority of mqtt.cert_file?"
    return " before its answer: does it ask for our certificate (mqtt.cert_file)?"


def _load_certificate(settings: MqttSettings, secure: ssl.SSLContext) -> None:
    """Loads our own certificate; a key that wants a passphrase is refused, not waited for."""

    def no_passphrase() -> str:
        raise ConfigError(
            f"mqtt.key_file: expected a key without a passphrase, found {key_file} encrypted; "
            "take its passphrase off (`openssl pkey`), or use the credential "
            f"{KEY_CREDENTIAL}, which systemd can encrypt"
        )

    cert_file = _readable(settings.cert_file, "cert_file") or ""
    credential = find_credential(KEY_CREDENTIAL)
    key_file = _readable(settings.key_file, "key_file") or str(credential or cert_file)
    try:
        secure.load_cert_chain(cert_file, key_file, password=no_passphrase)
    except (ssl.SSLError, OSError) as error:
        raise _unusable(
            "cert_file", "a certificate and its key (PEM)", f"{cert_file} and {key_file}", error
        ) from error


def _readable(file: str, key: str) -> str | None:
    """The file's path, None when none is named. Raises ConfigError when it cannot be read."""
    if not file:
        return None
    try:
        path = Path(file).expanduser()
        with path.open("rb"):
            return os.fspath(path)
    except (OSError, RuntimeError) as error:  # RuntimeError: ~ of a user who is not there
        raise _unusable(key, "a file that this user may read", file, error) from error


def _unusable(key: str, expected: str, found: str, error: OSError | RuntimeError) -> ConfigError:
    return ConfigError(
        f"mqtt.{key}: expected {expected}, found {found}: {_reason(error)}; "
        "name the right file, readable for the user of the daemon"
    )


def _reason(error: OSError | RuntimeError) -> str:
    """OpenSSL's or the system's own message."""
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.replace("_", " ").lower()
    return getattr(error, "strerror", None) or str(error)
