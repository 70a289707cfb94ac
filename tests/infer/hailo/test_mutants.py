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
from rigs.hailo_simulator.control import Simulator

import appliance.infer
from appliance.model.bundle import Bundle

INFER = Path(appliance.infer.__file__).parent
MODULES = (
    "hailo_system", "hailo_errors", "hailo", "hailo_watch", "hailo_decoder_files", "hailo_model",
    "hailo_network", "hailo_npu", "hailo_failover", "encoder", "hailo_decoder",
)  # fmt: skip
"""In the order of their imports."""
HAILO, ENCODER, DECODER = "test_infer_hailo", "test_infer_encoder", "test_infer_hailo_decoder"
EQUAL = "test_every_version_and_chip_gives_the_states_of_the_cpu"
LOGITS = "test_the_logits_are_those_of_the_cpu"
TOKENS = "test_the_tokens_are_those_of_the_cpu_where_the_sequence_is_long_enough"
LOST = "test_a_chip_lost_in_the_middle_of_a_text_gives_the_cpus_text_and_comes_back"
TRANSPOSED = "test_numbers_that_lie_otherwise_are_refused_though_they_are_as_many"
VERSION_418 = {"version": "4.18.0", "chip": "HAILO8", "made_for": "HAILO8", "name": "hailo8"}
VERSION_423 = VERSION_418 | {"version": "4.23.0"}

MUTANTS: dict[str, tuple[str, str, str, str, str, dict[str, Any]]] = {
    "leaves the scheduler off, as 4.x's default has it": (
        "hailo_npu", "parameters.scheduling_algorithm = ", "unused = ",
        HAILO, EQUAL, VERSION_423,
    ),
    "passes a Path": (
        "hailo_model", "create_infer_model(str(self._hef.file))",
        "create_infer_model(self._hef.file)",
        HAILO, EQUAL, VERSION_423,
    ),
    "names the second argument, which 4.19 renamed": (
        "hailo_model", "(str(self._hef.file))", '(str(self._hef.file), name="")',
        HAILO, EQUAL, VERSION_418,
    ),
    "gives device_ids, which drops the parameters": (
        "hailo_npu", "binding.VDevice(parameters)",
        "binding.VDevice(device_ids=binding.Device.scan())",
        HAILO, EQUAL, VERSION_423,
    ),
    "leaves the input as the chip has it": (
        "hailo_model", "self._model.input(name).set_format_type", "str",
        HAILO, EQUAL, VERSION_423,
    ),
    "leaves the output as the chip has it": (
        "hailo_model", "self._model.output(name).set_format_type", "str",
        HAILO, EQUAL, VERSION_423,
    ),
    "has integers as the input, of as many bytes": (
        "hailo_model", "np.float32) for name, shape in inputs",
        "np.int32) for name, shape in inputs",
        HAILO, EQUAL, VERSION_423,
    ),
    "binds a buffer that is not writeable": (
        "hailo_model", "input(name).set_buffer(buffer)",
        "input(name).set_buffer(np.broadcast_to(buffer, buffer.shape))", HAILO, EQUAL, VERSION_423,
    ),
    "binds a buffer that is not contiguous": (
        "hailo_model", "input(name).set_buffer(buffer)",
        "input(name).set_buffer(np.asfortranarray(buffer))",
        HAILO, EQUAL, VERSION_418,
    ),
    "trusts the number of bytes": (
        "hailo_npu", "if list(edges.values()) != [wanted]", "if not edges",
        HAILO, "test_numbers_that_lie_otherwise_are_refused_though_they_are_as_many",
        {"shape": (100, 1, 128)},
    ),
    "trusts a wait that did not raise": (
        "hailo_model", "if outcomes[0].exception is not None", "if False",
        HAILO, "test_a_failed_job_gives_an_error_and_never_its_garbage", {},
    ),
    "trusts whatever the numbers are": (
        "hailo_model", "if not np.isfinite(values).all()", "if False",
        HAILO, "test_a_failed_job_gives_an_error_and_never_its_garbage", {},
    ),
    "has a callback that raises": (
        "hailo_model", "outcomes.append(completion_info)",
        "outcomes.append(completion_info); raise ValueError",
        HAILO, "test_what_was_encoded_before_stays_as_it_was", {},
    ),
    "hands the chip's own buffer on": (
        "hailo_npu", "encoded[0].copy()", "encoded[0]",
        HAILO, "test_what_was_encoded_before_stays_as_it_was", {},
    ),
    "lets go of a job that hangs, which holds the chip": (
        "hailo_model", "quietly(lambda: configured.__exit__(None, None, None))", "pass",
        HAILO, "test_a_job_that_hangs_is_given_up_and_closing_frees_the_chip", {},
    ),
    "keeps the model when it closes": (
        "hailo_model", "self._model = None\n", "pass\n",
        HAILO, "test_closing_or_failing_to_open_frees_the_chip", {},
    ),
    "raises with the binding's traceback, which holds the chip": (
        "hailo_model", "fault = explain(error, situation())\n",
        "raise explain(error, situation()) from error\n",
        HAILO, "test_closing_or_failing_to_open_frees_the_chip", {},
    ),
    "shares without the service": (
        "hailo_npu", "parameters.multi_process_service = True", "pass",
        HAILO, "test_the_chip_is_shared_through_the_service_where_all_agree", {},
    ),
    "takes the chip before it knows the HEF to be for it": (
        "hailo_npu", "            each.check_chip(identity.chip)\n", "",
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
        "hailo_failover", "self._failed, self._npu = npu, None", "pass",
        ENCODER,
        "test_a_window_that_the_npu_fails_comes_from_the_cpu_at_once_and_the_npu_comes_back",
        {"fault": "a failed job"},
    ),
    "trusts the number of bytes of a decoder": (
        "hailo_network", "rows != [(bundle.positions, bundle.d_model), (length, bundle.d_model)]",
        "False", DECODER, TRANSPOSED, {},
    ),
    "hands the buffers of a decoder on": (
        "hailo_network", "], axis=-1)", "], axis=-1, out=self.__dict__.get('k'))\n"
        "        self.k = logits", DECODER, "test_logits_of_a_step_stay_as_they_were", {},
    ),
    "joins the parts of the logits as they are listed": (
        "hailo_network", "self._parts = self._hef.output_order", "self._parts = tuple(outputs)",
        DECODER, LOGITS, {"name": "home"},
    ),
    "joins the parts of the logits by the numbers in their names": (
        "hailo_network", "self._parts = self._hef.output_order",
        "self._parts = tuple(sorted(outputs, key=lambda name: int(name[12:])))",
        DECODER, LOGITS, {"name": "home"},
    ),
    "takes a decoder's inputs as they are listed": (
        "hailo_network", "states, embedded = sorted(self.model.inputs)",
        "states, embedded = self.model.inputs", DECODER, LOGITS, {"name": "home"},
    ),
    "forgets where the tokens stand": (
        "hailo_decoder_files", " + self._places", "", DECODER, LOGITS, {"name": "home"},
    ),
    "starts with a part of the prompt": (
        "hailo_decoder", "list(self._bundle.prompt)", "list(self._bundle.prompt[:1])",
        DECODER, TOKENS, {"name": "home", "rules": (1.0, 0.0), "temperature": 0.0},
    ),
    "writes more than the sequence holds": (
        "hailo_decoder", "min(room, self", "max(room, self",
        DECODER, "test_a_text_longer_than_the_sequence_is_cut_there_and_says_so", {"name": "home"},
    ),
    "keeps a chip that failed the decoder": (
        "hailo_decoder", "npu.fault = error", "pass", DECODER, LOST, {"fault": "a failed job"},
    ),
    "loses the window with the chip": (
        "hailo_decoder", "except NpuError as error:", "except ZeroDivisionError as error:",
        DECODER, LOST, {"fault": "a failed job"},
    ),
    "closes the encoder alone": (
        "hailo_npu", "self.decoder.model.close()", "pass",
        DECODER, "test_a_chip_that_the_encoder_lost_is_lost_to_the_decoder_too", {},
    ),
    "keeps the chip when the decoder will not do": (
        "hailo_npu", '"decoding")\n        except RoomscribeError:\n            self.close()',
        '"decoding")\n        except RoomscribeError:\n            pass',
        DECODER, "test_closing_frees_the_chip_whatever_happened", {},
    ),
}  # fmt: skip
"""What it does wrong: module, text, text in its place; the test that catches it, and its arguments
besides fixtures."""


@pytest.fixture
def restored() -> Iterator[None]:
    """Puts the real modules back."""
    names = [f"appliance.infer.{name}" for name in MODULES] + [HAILO, ENCODER, DECODER]
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
    for name in (HAILO, ENCODER, DECODER):
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
def given(
    simulator: Simulator, hef_bundle: Bundle, npu_bundles: dict[str, Bundle], copied: Bundle,
    tmp_path: Path,
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """What the tests may ask for."""
    with pytest.MonkeyPatch.context() as patch:
        yield {
            "simulator": simulator,
            "hef_bundle": hef_bundle,
            "npu_bundles": npu_bundles,
            "npu_bundle": npu_bundles["home"],
            "copied": copied,
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
@pytest.mark.parametrize(("file", "name"), dict.fromkeys(m[3:5] for m in MUTANTS.values()))
def test_the_backend_as_it_is_passes(given: dict[str, Any], file: str, name: str) -> None:
    arguments = next(m[5] for m in MUTANTS.values() if m[3:5] == (file, name))
    run(load_all("", "", ""), file, name, given | arguments)
