"""TLS to a real Mosquitto: its certificate and name are checked."""

import re
import ssl
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rigs.broker import Broker
from rigs.certificates import Authority
from rigs.needs import needs_broker, needs_openssl
from rigs.publishing import running, transcript
from rigs.waiting import PATIENCE_S, until

from appliance.config import MqttSettings, parse
from appliance.errors import ConfigError
from appliance.mqtt import credentials
from appliance.mqtt.client import Untrusted
from appliance.mqtt.connection import BrokerConnection
from appliance.store.store import Store

pytestmark = [needs_broker, needs_openssl]


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("house"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("stranger"), "stranger")


def secure_broker(authority: Authority, name: str = "IP:127.0.0.1", more: str = "") -> Broker:
    """A broker that speaks TLS alone, under that name."""
    certificate, key = authority.sign("broker", name)
    lines = f"cafile {authority.certificate}\ncertfile {certificate}\nkeyfile {key}\n{more}"
    return Broker(config=lines)


def settings(broker: Broker, **changes: Any) -> MqttSettings:
    return replace(MqttSettings(host=broker.host, port=broker.port, tls=True), **changes)


def delivered(broker: Broker, chosen: MqttSettings, store: Store) -> str:
    """What a subscriber of TLS hears of one transcript."""
    command = ["stdbuf", "-oL", "mosquitto_sub", "-d", "-V", "5", "-q", "1"]
    command += ["-h", broker.host, "-p", str(broker.port)]
    command += ["--cafile", chosen.ca_file, "-t", "roomscribe/kitchen/transcript", "-C", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as subscriber:
        assert subscriber.stdout
        while not (line := subscriber.stdout.readline()).startswith("Subscribed"):
            assert line, "mosquitto_sub ended"
        store.append(transcript("in private"))
        with running(chosen, store):
            try:
                return subscriber.communicate(timeout=PATIENCE_S)[0]
            finally:
                subscriber.kill()


def trouble(chosen: MqttSettings, store: Store) -> str:
    """The one thing that is wrong."""
    with running(chosen, store) as publisher:
        until(publisher.reasons)
        time.sleep(2.5)
        assert not publisher.connection.is_connected
        (reason,) = publisher.reasons()
        return reason


def test_a_broker_of_our_own_authority_is_trusted(house: Authority, store: Store) -> None:
    with secure_broker(house) as broker:
        chosen = settings(broker, ca_file=str(house.certificate))
        assert '"text": "in private"' in delivered(broker, chosen, store)


def test_a_broker_of_another_authority_is_refused_in_one_line(
    house: Authority, stranger: Authority, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    with secure_broker(stranger) as broker:
        chosen = settings(broker, ca_file=str(house.certificate))
        why = trouble(chosen, store)
        log = broker.log()
    assert log.count("unknown ca") == 1, log
    assert why.startswith(f"broker 127.0.0.1:{broker.port} shows a certificate that is not trusted")
    assert "set mqtt.ca_file to the authority that signed it" in why
    assert [line for line in caplog.messages if "certificate" in line] == [why]


@pytest.mark.parametrize(
    ("shown", "is_known", "why"),
    [
        ((), False, "not trusted"),
        (("DNS:other.lan",), True, "IP address mismatch.*mqtt.host to a name in it"),
        (("IP:127.0.0.1", "require_certificate true\n"), True, "require a client certificate"),
    ],
    ids=["the system's authorities", "another name", "a client's certificate"],
)
def test_what_is_wrong_with_a_certificate_is_named(
    house: Authority, store: Store, shown: tuple[str, ...], is_known: bool, why: str
) -> None:
    with secure_broker(house, *shown) as broker:
        chosen = settings(broker, ca_file=str(house.certificate) if is_known else "")
        assert re.search(why, trouble(chosen, store))


def test_tls_on_one_side_alone_is_named(store: Store, house: Authority) -> None:
    with Broker() as broker:
        why = trouble(settings(broker, ca_file=str(house.certificate)), store)
    assert "mqtt.port is its TLS port" in why or "is mqtt.port its TLS port?" in why
    with secure_broker(house) as broker:
        why = trouble(broker.settings, store)
    assert "is mqtt.port its TLS port (set mqtt.tls)" in why


def test_a_file_that_is_missing_or_wrong_is_a_mistake_with_its_fix(tmp_path: Path) -> None:
    for file, found in ((tmp_path / "none", "No such file"), (tmp_path / "text", "")):
        if not found:
            file.write_text("no certificate", encoding="utf-8")
        with pytest.raises(ConfigError) as caught:
            credentials.tls_context(MqttSettings(tls=True, ca_file=str(file)))
        assert str(caught.value).startswith("mqtt.ca_file: expected ")
        assert found in str(caught.value)
        assert "\n" not in str(caught.value)


def test_without_tls_there_is_no_context_and_its_key_is_a_mistake() -> None:
    assert credentials.tls_context(MqttSettings()) is None
    with pytest.raises(ConfigError, match=r"mqtt\.ca_file: expected mqtt.tls = true beside it"):
        parse('[mqtt]\nca_file = "x.pem"\n', "house.toml")


def test_a_certificate_that_a_wrong_clock_refuses_is_said_to_be_that() -> None:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_code = 9
    found = credentials.explain_tls_error(MqttSettings(host="hub", tls=True), error)
    assert found.startswith("broker hub:1883: its certificate is not valid yet by this machine's")
    assert "set the clock" in found


def test_an_attempt_follows_soon_while_the_clock_may_be_wrong() -> None:
    connection = BrokerConnection(MqttSettings(), "kitchen")
    for by_clock, soonest_s, latest_s in ((True, 0.5, 1.0), (False, 30.0, 60.0)):
        now_s = time.monotonic()
        connection._on_failure(now_s, Untrusted("its certificate is not valid yet", by_clock))
        assert soonest_s <= connection.due_s - now_s <= latest_s
