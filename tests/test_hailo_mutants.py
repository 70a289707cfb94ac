"""A backend that ignores any of HailoRT's traps fails: each mutant is caught by a test of ours."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hailo_fixture import hef_bundle, simulator
from hailo_simulator.control import Simulator

import appliance.infer
from appliance.infer.bundle import Bundle

__all__ = ["hef_bundle", "simulator"]

INFER = Path(appliance.infer.__file__).parent
MODULES = (
    "hailo_system", "hailo_errors", "hailo", "hailo_watch", "hailo_npu", "hailo_failover",
    "encoder",
)  # fmt: skip
"""In the order of their imports."""
HAILO, ENCODER = "test_infer_hailo", "test_infer_encoder"
EQUAL = "test_every_version_and_chip_gives_the_states_of_the_cpu"
VERSION_418 = {"version": "4.18.0", "chip": "HAILO8", "made_for": "HAILO8", "name": "hailo8"}
VERSION_423 = VERSION_418 | {"version": "4.23.0"}

MUTANTS: dict[str, tuple[str, str, str, str, str, dict[str, Any]]] = {
    "leaves the scheduler off, as 4.x's default has it": (
        "hailo_npu", "parameters.scheduling_algorithm = ", "unused = ",
        HAILO, EQUAL, VERSION_423,
    ),
    "passes a Path": (
        "hailo_npu", "create_infer_model(str(self.hef.file))", "create_infer_model(self.hef.file)",
        HAILO, EQUAL, VERSION_423,
    ),
    "names the second argument, which 4.19 renamed": (
        "hailo_npu", "(str(self.hef.file))", '(str(self.hef.file), name="")',
        HAILO, EQUAL, VERSION_418,
    ),
    "gives device_ids, which drops the parameters": (
        "hailo_npu", "binding.VDevice(parameters)",
        "binding.VDevice(device_ids=binding.Device.scan())",
        HAILO, EQUAL, VERSION_423,
    ),
    "leaves the input as the chip has it": (
        "hailo_npu", "self._model.input().set_format_type", "str",
        HAILO, EQUAL, VERSION_423,
    ),
    "leaves the output as the chip has it": (
        "hailo_npu", "self._model.output().set_format_type", "str",
        HAILO, EQUAL, VERSION_423,
    ),
    "has integers as the input, of as many bytes": (
        "hailo_npu", "bundle.n_mels), np.float32)", "bundle.n_mels), np.int32)",
        HAILO, EQUAL, VERSION_423,
    ),
    "binds a buffer that is not writeable": (
        "hailo_npu", "set_buffer(self._input)", "set_buffer(np.broadcast_to(self._input, "
        "self._input.shape))", HAILO, EQUAL, VERSION_423,
    ),
    "binds a buffer that is not contiguous": (
        "hailo_npu", "set_buffer(self._input)", "set_buffer(np.asfortranarray(self._input))",
        HAILO, EQUAL, VERSION_418,
    ),
    "trusts the number of bytes": (
        "hailo_npu", "if found != [wanted]", "if not found",
        HAILO, "test_numbers_that_lie_otherwise_are_refused_though_they_are_as_many",
        {"shape": (100, 1, 128)},
    ),
    "trusts a wait that did not raise": (
        "hailo_npu", "if outcomes[0].exception is not None", "if False",
        HAILO, "test_a_failed_job_gives_an_error_and_never_its_garbage", {},
    ),
    "trusts whatever the numbers are": (
        "hailo_npu", "if not np.isfinite(states).all()", "if False",
        HAILO, "test_a_failed_job_gives_an_error_and_never_its_garbage", {},
    ),
    "has a callback that raises": (
        "hailo_npu", "outcomes.append(completion_info)",
        "outcomes.append(completion_info); raise ValueError",
        HAILO, "test_what_was_encoded_before_stays_as_it_was", {},
    ),
    "hands the chip's own buffer on": (
        "hailo_npu", "self._output[0].copy()", "self._output[0]",
        HAILO, "test_what_was_encoded_before_stays_as_it_was", {},
    ),
    "lets go of a job that hangs, which holds the chip": (
        "hailo_npu", "_quietly(lambda: configured.__exit__(None, None, None))", "pass",
        HAILO, "test_a_job_that_hangs_is_given_up_and_closing_frees_the_chip", {},
    ),
    "keeps the model when it closes": (
        "hailo_npu", "        self._model = None\n        device,", "        device,",
        HAILO, "test_closing_or_failing_to_open_frees_the_chip", {},
    ),
    "raises with the binding's traceback, which holds the chip": (
        "hailo_npu", "fault = explain(error, self._situation())\n",
        "raise explain(error, self._situation()) from error\n",
        HAILO, "test_closing_or_failing_to_open_frees_the_chip", {},
    ),
    "shares without the service": (
        "hailo_npu", "parameters.multi_process_service = True", "pass",
        HAILO, "test_the_chip_is_shared_through_the_service_where_all_agree", {},
    ),
    "takes the chip before it knows the HEF to be for it": (
        "hailo_npu", "    hef.check_chip(identity.chip)\n", "",
        HAILO, "test_a_hef_for_another_chip_is_refused_before_the_chip_is_taken", {},
    ),
    "catches what the binding says to raise, not what Device does": (
        "hailo", "except Exception as error:  # Device",
        "except binding.HailoRTException as error:  # Device",
        HAILO, "test_driver_and_library_of_different_versions_are_both_named", {},
    ),
    "expects a missing binding to be an ImportError": (
        "hailo", "except Exception as error:  # its version", "except ImportError as error:  # its",
        HAILO, "test_a_binding_that_cannot_be_loaded_or_is_too_old_is_a_device_error", {},
    ),
    "looks for the status in the text alone": (
        "hailo_errors", "(error.__cause__, error)", "()",
        HAILO, "test_driver_and_library_of_different_versions_are_both_named", {},
    ),
    "lets HailoRT write its log where we are": (
        "hailo", "os.environ.setdefault(", "str(",
        HAILO, "test_hailort_writes_no_log_into_the_working_directory", {},
    ),
    "goes on with an NPU that failed": (
        "hailo_failover", "self._failed, self._npu = self._npu, None", "pass",
        ENCODER,
        "test_a_window_that_the_npu_fails_comes_from_the_cpu_at_once_and_the_npu_comes_back",
        {"fault": "a failed job"},
    ),
}  # fmt: skip
"""What it does wrong: module, text, text in its place; the test that catches it, and its arguments
besides fixtures."""


@pytest.fixture
def restored() -> Iterator[None]:
    """Puts the real modules back."""
    names = [f"appliance.infer.{name}" for name in MODULES] + [HAILO, ENCODER]
    kept = {name: sys.modules.get(name) for name in names}
    yield
    for name, module in kept.items():
        sys.modules.pop(name, None)
        if module:
            sys.modules[name] = module
            if name.startswith("appliance"):
                setattr(appliance.infer, name.rsplit(".", 1)[1], module)


def load(name: str, file: Path, source: str) -> ModuleType:
    """A module of this source, in place of the real one."""
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if name.startswith("appliance"):
        setattr(appliance.infer, name.rsplit(".", 1)[1], module)
    exec(compile(source, str(file), "exec"), module.__dict__)
    return module


def load_all(mutated: str, old: str, new: str) -> dict[str, ModuleType]:
    """The backend and its tests, with one text replaced."""
    for name in MODULES:
        file = INFER / f"{name}.py"
        source = file.read_text(encoding="utf-8")
        if name == mutated:
            assert source.count(old) == 1, f"{name}: {source.count(old)} times {old!r}"
            source = source.replace(old, new)
        load(f"appliance.infer.{name}", file, source)
    tests = {}
    for name in (HAILO, ENCODER):
        file = Path(__file__).with_name(f"{name}.py")
        tests[name] = load(name, file, file.read_text(encoding="utf-8"))
    return tests


def run(tests: dict[str, ModuleType], file: str, name: str, given: dict[str, Any]) -> None:
    """Runs a test function, and raises what the simulator noticed."""
    test = getattr(tests[file], name)
    given = given | {"clock": tests[ENCODER].Clock()}
    test(**{name: given[name] for name in inspect.signature(test).parameters})
    assert given["simulator"].inner.violations == []


@pytest.fixture
def given(simulator: Simulator, hef_bundle: Bundle, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """What the tests may ask for."""
    with pytest.MonkeyPatch.context() as patch:
        yield {
            "simulator": simulator,
            "hef_bundle": hef_bundle,
            "tmp_path": tmp_path,
            "monkeypatch": patch,
        }


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize("wrong", MUTANTS)
def test_a_backend_is_caught_that(given: dict[str, Any], wrong: str) -> None:
    module, old, new, file, name, arguments = MUTANTS[wrong]
    tests = load_all(module, old, new)
    with pytest.raises(BaseException) as caught:
        run(tests, file, name, given | arguments)
    not_by_a_test = KeyboardInterrupt | SystemExit | NameError | ImportError
    assert not isinstance(caught.value, not_by_a_test)
    given["simulator"].inner.violations.clear()


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize("name", {mutant[4]: "" for mutant in MUTANTS.values()})
def test_the_backend_as_it_is_passes(given: dict[str, Any], name: str) -> None:
    file, arguments = next((m[3], m[5]) for m in MUTANTS.values() if m[4] == name)
    run(load_all("", "", ""), file, name, given | arguments)
