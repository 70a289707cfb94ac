"""The Compose file and the Home Assistant app keep to the published formats, and to our settings.

The rules are those of developers.home-assistant.io/docs/apps/configuration, of the supervisor that
enforces them (supervisor/apps/validate.py at commit 090ef31e of home-assistant/supervisor), and of
the Compose specification (compose-spec.io), as of November 2026.
"""

import json
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from generate.icons import icons
from PIL import Image
from rigs.checkout import ROOT
from rigs.command import captured
from rigs.needs import module

from appliance import __version__
from appliance.cli import app_options, main
from appliance.config import explain_value, load

yaml = module("yaml", "pyyaml")
APP, COMPOSE = ROOT / "homeassistant/roomscribe", ROOT / "examples/compose"
IMAGE = "ghcr.example.net/me/roomscribe-app"
Rule = Callable[[Any], bool]
IMAGE_USER = re.search(r"--uid (\d+)", (ROOT / "scripts/deb/image_install.sh").read_text("utf-8"))


def read(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(file.read_text("utf-8"))
    return found


# Home Assistant's app


def is_one_of(*words: str) -> Rule:
    return lambda value: value in words


def matches(pattern: str) -> Rule:
    return lambda value: isinstance(value, str) and bool(re.fullmatch(pattern, value))


def is_list_of(rule: Rule) -> Rule:
    return lambda value: isinstance(value, list) and all(map(rule, value))


def is_a(kind: type) -> Rule:
    return lambda value: type(value) is kind


def is_table(keys: Rule, values: Rule) -> Rule:
    return lambda value: (
        isinstance(value, dict) and all(map(keys, value)) and all(map(values, value.values()))
    )


RANGE = r"(\(-?\d*\.?\d*,-?\d*\.?\d*\))?"
ELEMENT = matches(
    rf"(bool|email|url|port|device(\(subsystem=[a-z]+\))?|(str|password|int|float){RANGE}"
    r"|match\(.*\)|list\(.+\))\??"
)
"""What an option may be; ? marks one that may be missing."""
FOLDERS = (
    *("homeassistant_config", "app_config", "all_app_configs", "local_apps"),
    *("ssl", "backup", "share", "media", "data"),
)
"""Without those that the supervisor calls legacy."""
PORT = matches(r"\d{1,5}(/(tcp|udp))?")
KEYS: dict[str, Rule] = {
    "name": is_a(str),
    "version": is_a(str),
    "slug": matches(r"[-_.A-Za-z0-9]+"),
    "description": is_a(str),
    "url": matches(r"https?://\S+"),
    "image": matches(r"([a-z0-9.-]+\.[a-z]{2,}/)?([a-z0-9][a-z0-9._-]*/)*[a-z0-9][a-z0-9._-]*"),
    "homeassistant": matches(r"20\d\d\.\d+\.\d+"),
    "discovery": is_list_of(is_a(str)),
    "arch": is_list_of(is_one_of("aarch64", "amd64")),
    "startup": is_one_of("initialize", "system", "services", "application", "once"),
    "boot": is_one_of("auto", "manual", "manual_only"),
    "stage": is_one_of("stable", "experimental", "deprecated"),
    "init": is_a(bool),
    "timeout": lambda value: type(value) is int and 10 <= value <= 300,
    "audio": is_a(bool),
    "devices": is_list_of(matches(r"/dev/[^:]+")),
    "homeassistant_api": is_a(bool),
    "services": is_list_of(matches(r"(mqtt|mysql):(provide|want|need)")),
    "ingress": is_a(bool),
    "ingress_port": lambda value: type(value) is int and 0 <= value < 65536,
    "ingress_stream": is_a(bool),
    "panel_icon": matches(r"mdi:[a-z0-9-]+"),
    "panel_title": is_a(str),
    "panel_admin": is_a(bool),
    "map": is_list_of(
        lambda entry: (
            entry["type"] in FOLDERS
            and type(entry.get("read_only", True)) is bool
            and entry.keys() <= {"type", "read_only", "path"}
        )
    ),
    "ports": is_table(PORT, lambda port: port is None or type(port) is int),
    "backup_exclude": is_list_of(is_a(str)),
    "options": is_a(dict),
    "schema": is_table(
        is_a(str),
        lambda kind: (
            ELEMENT(kind) or (isinstance(kind, list) and len(kind) == 1 and ELEMENT(kind[0]))
        ),
    ),
}
"""Keys of config.yaml that we use, and what each may be."""
REQUIRED = {"name", "version", "slug", "description", "arch"}


def faults(found: Mapping[str, Any]) -> list[str]:
    """Return the keys of a config.yaml that are missing, unknown or wrong."""
    missing = sorted(REQUIRED - found.keys())
    return missing + [name for name, value in found.items() if not KEYS.get(name, bool)(value)]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one command makes for a forge."""
    folder = tmp_path_factory.mktemp("apps")
    arguments = ["--image", IMAGE, "--url", "https://voice.example.net", "--version", "0.3.0~rc1"]
    captured(ROOT / "scripts/build-app", folder, *arguments, check=True)
    return folder


def test_the_repository_of_apps_keeps_to_home_assistants_rules(repository: Path) -> None:
    found = read(repository / "repository.yaml")
    assert found == {"name": "Roomscribe", "url": "https://voice.example.net"}
    found = read(repository / "roomscribe/config.yaml")
    assert set(found) == KEYS.keys()
    assert faults(found) == []
    assert (found["image"], found["version"]) == (IMAGE, "0.3.0-rc1")
    assert found["discovery"] == ["wyoming"] and found["options"]["wyoming"] is True
    names = {file.name for file in (repository / "roomscribe").iterdir()}
    assert {"CHANGELOG.md", "DOCS.md", "README.md", "icon.png", "logo.png"} <= names
    assert "Dockerfile" not in names, "Home Assistant would build it"
    changes = (repository / "roomscribe/CHANGELOG.md").read_text("utf-8")
    assert changes.startswith(f"## {__version__}") and "](" not in changes


def test_the_apps_pictures_are_those_that_the_program_draws() -> None:
    for file, image in icons():
        assert np.array_equal(np.asarray(Image.open(file)), image), file
    shapes = [np.asarray(Image.open(APP / name)).shape for name in ("icon.png", "logo.png")]
    assert shapes == [(128, 128, 4), (100, 250, 4)]


WRONG = (
    *("build-app", "build-app /dev/null/x --image a b", f"build-app /dev/null/x --image {IMAGE}"),
    *("build-app /dev/null/x --no x", "build-image --arch", "test-image --arch arm64"),
    *("test-vm --deb", "test-deb-arm64 nonsense"),
)


@pytest.mark.parametrize("words", WRONG)
def test_wrong_arguments_are_told_first(words: str, tmp_path: Path) -> None:
    (tmp_path / "unshare").symlink_to("/bin/false")  # nothing can be built here
    command, path = f"{ROOT}/scripts/{words}".split(), f"{tmp_path}:/usr/bin:/bin"
    done = captured(*command, env={"PATH": path, "HOME": "/"})
    assert done.returncode == 2
    assert command[0].removeprefix(f"{ROOT}/") in done.stderr


def test_every_option_has_a_default_and_a_name_in_each_language() -> None:
    found = read(APP / "config.yaml")
    options, schema = found["options"], found["schema"]
    optional = {name for name, kind in schema.items() if str(kind).endswith("?")}
    assert options.keys() == schema.keys() - optional
    languages = sorted((APP / "translations").glob("*.yaml"))
    assert languages
    for file in languages:
        texts = read(file)
        assert texts.keys() == {"configuration", "network"}
        assert texts["configuration"].keys() == schema.keys(), file
        assert texts["network"].keys() == found["ports"].keys(), file
        for name, text in texts["configuration"].items():
            assert text.keys() == {"name", "description"}, name
            assert all(text.values()), name


def test_every_option_sets_a_key_and_every_default_is_a_right_value() -> None:
    found = read(APP / "config.yaml")
    special = {"home_names", "mqtt_password"}
    assert found["schema"].keys() - special == app_options.KEYS.keys()
    for name, value in found["options"].items():
        if name not in special:
            assert explain_value(app_options.KEYS[name], value) == "", name
    assert found["version"] == __version__
    assert found["ingress_port"] == app_options.PORT
    levels = found["schema"]["log_level"].removeprefix("list(").removesuffix(")").split("|")
    assert all(explain_value("journal.level", level) == "" for level in levels)


def test_the_apps_image_and_profile_fit_together() -> None:
    docker = (APP / "Dockerfile").read_text("utf-8")
    (command,) = re.findall(r"(?m)^CMD (\[.*\])$", docker)
    (check,) = re.findall(r"HEALTHCHECK .* CMD (\[.*\])$", docker, re.MULTILINE)
    for words in (command, check):
        assert main.parser().parse_args(json.loads(words)[1:]).command
    assert f'io.hass.version="{__version__}"' in docker
    profile = (APP / "apparmor.txt").read_text("utf-8")
    assert re.findall(r"(?m)^profile (\S+) ", profile) == [read(APP / "config.yaml")["slug"]]
    assert "/run/audio/** rw," in profile
    assert "_pulse.so" in (ROOT / "scripts/deb/image_install.sh").read_text("utf-8")
    assert profile.count("{\n") == 1, "one profile, which the supervisor renames"


# Compose

SERVICE_KEYS = {
    *("image", "restart", "ports", "volumes", "pull_policy", "hostname", "depends_on", "group_add"),
    *("device_cgroup_rules", "secrets", "read_only", "tmpfs", "shm_size", "cap_drop"),
    *("security_opt", "stop_grace_period", "healthcheck"),
}
"""Keys of a service in the Compose specification that we use."""


def test_the_compose_file_keeps_to_the_specification() -> None:
    found = read(COMPOSE / "compose.yaml")
    assert found.keys() == {"name", "services", "secrets", "volumes"}
    for service in found["services"].values():
        assert service.keys() <= SERVICE_KEYS
        for volume in service["volumes"]:
            source, target, *mode = volume.split(":")
            assert source.startswith(("./", "/")) or source in found["volumes"], volume
            assert target.startswith("/") and mode in ([], ["ro"]), volume
        assert all(isinstance(port, str) for port in service["ports"]), "YAML reads 22:22 as 1342"
        assert set(service.get("secrets", ())) <= found["secrets"].keys()
        assert set(service.get("depends_on", ())) <= found["services"].keys()
        for rule in service.get("device_cgroup_rules", ()):
            assert re.fullmatch(r"[abc] (\d+|\*):(\d+|\*) [rwm]{1,3}", rule)


def test_the_compose_file_gives_the_container_little() -> None:
    service = read(COMPOSE / "compose.yaml")["services"]["roomscribe"]
    assert service["image"] == f"localhost/roomscribe:{__version__}"
    quadlet = (ROOT / "examples/roomscribe.container").read_text("utf-8")
    assert f"\nImage={service['image']}\n" in quadlet
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert main.parser().parse_args(service["healthcheck"]["test"][2:]).command
    places = [volume.split(":")[1] for volume in service["volumes"]]
    assert places == ["/var/lib/roomscribe", "/etc/roomscribe", "/dev/snd"]


def test_the_compose_files_configuration_is_right_and_names_what_compose_mounts() -> None:
    file = COMPOSE / "roomscribe/roomscribe.toml"
    settings, service = load(file), read(COMPOSE / "compose.yaml")["services"]["roomscribe"]
    assert settings.mqtt.host in service["depends_on"]
    assert settings.mqtt.password_file == f"/run/secrets/{service['secrets'][0]}"
    assert f"{settings.web.port}:{settings.web.port}" in service["ports"]
    assert tomllib.loads(file.read_text("utf-8"))["web"]["listen"] == "0.0.0.0"
    ignored = (ROOT / ".gitignore").read_text("utf-8").split()
    secrets = ("mqtt-password", "mosquitto/passwords")
    assert {f"examples/compose/{name}" for name in secrets} <= set(ignored)


def test_documentation_names_the_images_user() -> None:
    assert IMAGE_USER
    for file in (COMPOSE / "README.md", ROOT / "docs/containers.md"):
        numbers = re.findall(r"\b10[3-9]\d\d\b", file.read_text("utf-8"))
        assert IMAGE_USER[1] in numbers, file
