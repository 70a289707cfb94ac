"""Password and TLS of the connection to the broker, and messages about their problems.

Secrets come from files only, never from the configuration or the environment.
"""

import ssl

from appliance.config import MqttSettings
from appliance.system import explain_wrong_time, read_secret, tls_reason, trusted_context

PASSWORD_CREDENTIAL = "roomscribe.mqtt-password"
"""Name of systemd's credential with the password."""


def read_password(settings: MqttSettings) -> str | None:
    """Return the broker's password: from mqtt.password_file, else from systemd's credential, else
    None.

    A final line end is removed. Raises ConfigError if the configured file cannot be read or is
    empty.
    """
    return read_secret(
        settings.password_file, PASSWORD_CREDENTIAL, "mqtt.password_file", "the broker's password"
    )


def tls_context(settings: MqttSettings) -> ssl.SSLContext | None:
    """Return the TLS context, None without TLS. Raises ConfigError for a file that is missing or
    wrong."""
    fix = "name the right file, readable for the user of the daemon"
    return trusted_context(settings.ca_file, "mqtt.ca_file", fix) if settings.tls else None


def explain_tls_error(settings: MqttSettings, error: BaseException | None) -> str:
    """Return one line about a connection that failed because of TLS; "" for any other failure."""
    where = f"broker {settings.host}:{settings.port}"
    if wrong_time := explain_wrong_time(error):
        return f"{where}: {wrong_time}"
    if isinstance(error, ssl.SSLCertVerificationError):
        why = error.verify_message.rstrip(".")
        return (
            f"{where} shows a certificate that is not trusted ({why}); set mqtt.ca_file to "
            "the authority that signed it, and mqtt.host to a name in it"
        )
    if isinstance(error, ssl.SSLError):
        return (
            f"{where} does not agree on TLS ({tls_reason(error)}); check that mqtt.port is its "
            "TLS port"
        )
    return ""


def tls_hint(settings: MqttSettings) -> str:
    """Return the likely cause of a connection that ends before the broker has answered."""
    if not settings.tls:
        return " before its answer: is mqtt.port its TLS port (set mqtt.tls), or no MQTT broker's?"
    return " before its answer: does it require a client certificate, which is not supported?"
