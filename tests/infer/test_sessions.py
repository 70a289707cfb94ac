"""Bundles of 8 bits hear nearly the same as those of 32, and are a third of the size."""

import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from rigs.checkout import BUILT_IN, ROOT, environment
from rigs.needs import needs_model
from rigs.steps import logits_of

from appliance.convert.build import Recipe, build_bundle
from appliance.convert.graph import RuntimeGraph
from appliance.infer import runtime
from appliance.infer.decoder import Decoder
from appliance.infer.sessions import Session, _options
from appliance.model.bundle import Bundle, load_bundle
from appliance.system import lacks_vnni

WINDOWS = range(40)


@pytest.fixture(scope="module")
def bundles(checkpoint_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Bundle]:
    """The same weights: float32, int8."""
    folder = tmp_path_factory.mktemp("widths")
    made = []
    for quantize in ("none", "int8"):
        out = folder / quantize
        build_bundle(checkpoint_folder, out, Recipe("random", 10.0, quantize=quantize))
        made.append(load_bundle(out))
    return made


def states(bundle: Bundle, seed: int) -> NDArray[np.float32]:
    rng = np.random.Generator(np.random.PCG64(seed))
    return (rng.random((bundle.positions, bundle.d_model)) * 4 - 2).astype(np.float32)


def size(bundle: Bundle) -> int:
    return sum(file.stat().st_size for file in bundle.folder.iterdir())


def test_the_bundles_get_smaller_and_say_what_they_are(bundles: list[Bundle]) -> None:
    whole, int8 = bundles
    assert size(int8) < 0.35 * size(whole)
    assert (whole.quantize, int8.quantize) == ("none", "int8")


def test_every_matrix_of_8_bits_has_its_zero_point_written_out(bundles: list[Bundle]) -> None:
    """Processors without VNNI need it: see infer/sessions.py."""
    for name in ("encoder.onnx", "cross.onnx", "step.onnx", "screened.onnx"):
        model = onnx.load(bundles[1].folder / name, load_external_data=False)
        constants = {each.name: each for each in model.graph.initializer}
        whole = [each for each in constants.values() if each.data_type == onnx.TensorProto.INT8]
        matrices = {each.name.removesuffix(".int8") for each in whole if len(each.dims) == 2}
        assert matrices
        assert {f"{each}.zero_point" for each in matrices} <= constants.keys()


def test_the_embedding_is_stored_once(bundles: list[Bundle]) -> None:
    for bundle in bundles:
        model = onnx.load(bundle.folder / "step.onnx", load_external_data=False)
        tables = [each for each in model.graph.initializer if "embed_tokens" in each.name]
        beside = [each for each in tables if math.prod(each.dims) >= bundle.d_model]
        assert len(beside) >= 2
        for each in beside:
            location = {entry.key: entry.value for entry in each.external_data}
            assert location["location"] == "embedding.bin"


def test_int8_logits_are_near_those_of_float32(bundles: list[Bundle]) -> None:
    whole, int8 = (Decoder(bundle, 1) for bundle in bundles)
    tokens = [*bundles[0].prompt, 5, 60, 7, 90]
    for seed in WINDOWS:
        heard = states(bundles[0], seed)
        rows = [logits_of(each, heard, tokens) for each in (whole, int8)]
        assert 0 < np.abs(rows[0] - rows[1]).std() < 0.05 * rows[0].std()


@pytest.mark.parametrize("saturating", [True, False])
def test_weights_become_unsigned_only_where_products_saturate(saturating: bool) -> None:
    options = _options(1, True, saturating=saturating)
    assert options.get_session_config_entry("session.x64quantprecision") == str(int(saturating))
    own = _options(1, True).get_session_config_entry("session.x64quantprecision")
    assert own == str(int(lacks_vnni()))


@pytest.mark.parametrize("many_rows", [True, False])
def test_products_of_the_greatest_8_bit_numbers_are_right(tmp_path: Path, many_rows: bool) -> None:
    rows = np.full((3 if many_rows else 1, 128), 255, np.float32)
    matrix = np.resize(np.array([127, 127, -127], np.float32), (128, 40))
    graph = RuntimeGraph({}, int8=True, many_rows=many_rows)
    shape = (1, len(rows), 40)
    graph.output(graph.project(graph.input("x", (1, *rows.shape)), "p", matrix), "y", shape)
    graph.save(tmp_path / "graph.onnx", "products")
    session = Session(tmp_path / "graph.onnx", 1)
    [found] = session.run({"x": rows[None]})
    assert np.allclose(found[0], rows @ matrix, rtol=1e-3)


NO_ROOM = """
import resource, sys
from pathlib import Path
from types import SimpleNamespace
from appliance.errors import ModelError
from appliance.infer.sessions import Session

def load(file):
    try:
        Session(Path(sys.argv[1], file), 1)
    except ModelError as error:
        return error

# no graph; the library is in memory now, and little room that it gave back
assert load("vocabulary.json").status == 78
pages = int(Path("/proc/self/statm").read_text().split()[0])
kind, most = resource.RLIMIT_AS, pages * resource.getpagesize() + 100_000
if sys.argv[2] == "files":
    kind, most = resource.RLIMIT_NOFILE, 3
resource.setrlimit(kind, (most, most))
error = load("encoder.onnx")
print(error.status, error)
"""


@needs_model
@pytest.mark.parametrize(
    ("lacking", "said"), [("memory", "bad_alloc"), ("files", "system error number 24")]
)
def test_a_graph_without_room_to_load_it_is_no_damaged_one(lacking: str, said: str) -> None:
    command = [sys.executable, "-c", NO_ROOM, str(BUILT_IN), lacking]
    done = subprocess.run(
        command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False
    )
    assert done.stdout.startswith("75 "), done.stderr
    assert said in done.stdout
    assert "free some memory" in done.stdout


CHATTY = """
import importlib, os, sys

os.write(2, b"Schema error: in the import\\\\n")
sys.path.remove(os.path.dirname(os.path.dirname(__file__)))
del sys.modules["onnxruntime"]
real = importlib.import_module("onnxruntime")


class Chatty(real.InferenceSession):
    said = False

    def __init__(self, *arguments, **options):
        if not Chatty.said:
            os.write(2, b"Schema error: in the first session\\\\n")
        Chatty.said = True
        super().__init__(*arguments, **options)


real.InferenceSession = Chatty
sys.modules["onnxruntime"] = real
"""
"""onnxruntime as it speaks in Debian beside onnx, whichever of the two was used first."""


def test_what_onnxruntime_says_of_the_table_it_shares_with_onnx_is_not_shown(
    tmp_path: Path,
) -> None:
    (tmp_path / "onnxruntime").mkdir()
    (tmp_path / "onnxruntime" / "__init__.py").write_text(CHATTY)
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import appliance.infer.sessions as used, os, onnxruntime\n"
        "assert onnxruntime.InferenceSession.said and used.onnxruntime is onnxruntime\n"
        "os.write(2, b'heard')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        cwd=ROOT, env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "heard")


@pytest.mark.parametrize(
    ("release", "flags", "fails"),
    [("1.21.0", 0, True), ("1.21.0", runtime.HWCAP_ASIMDHP, False), ("1.22.0", 0, False)],
)
def test_a_processor_on_which_onnxruntime_would_end_is_known_before(
    monkeypatch: pytest.MonkeyPatch, release: str, flags: int, fails: bool
) -> None:
    def getauxval(kind: int) -> int:
        return flags if kind == runtime.AT_HWCAP else -1

    monkeypatch.setattr("ctypes.CDLL", lambda _: SimpleNamespace(getauxval=getauxval))
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    monkeypatch.setattr("importlib.metadata.version", lambda _: release)
    assert ("half-precision" in runtime.lacking_runtime()) is fails
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert runtime.lacking_runtime() == ""
