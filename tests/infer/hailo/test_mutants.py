"""A backend that ignores any of HailoRT's traps fails: each mutant is caught by a test of ours."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest
from rigs.mutants import Change, run

# the first test pays for all mutants, one after the other
pytestmark = pytest.mark.timeout(600)

NPU, DECODER = "tests/infer/hailo/test_npu.py", "tests/infer/hailo/test_decoder.py"
ENCODER = "tests/infer/test_encoder.py"
EQUAL = "test_every_version_and_chip_gives_the_states_of_the_cpu[4.23.0-HAILO8L-HAILO8L-hailo8l]"
EQUAL_418 = "test_every_version_and_chip_gives_the_states_of_the_cpu[4.18.0-HAILO8-HAILO8-hailo8]"
LOGITS = "test_the_logits_are_those_of_the_cpu[home]"
TOKENS = "test_the_tokens_are_those_of_the_cpu_where_the_sequence_is_long_enough[0.0-rules0-home]"
LOST = "test_a_chip_lost_in_the_middle_of_a_text_gives_the_cpus_text_and_comes_back[a failed job]"
FAILED = (
    "test_a_window_that_the_npu_fails_comes_from_the_cpu_at_once_and_the_npu_comes_back"
    "[a failed job]"
)
CLOSING = """\
        for npu in (self._failed, self._npu):
            if npu:
                npu.close()
        self._failed = self._npu = None
"""


@dataclass(frozen=True, slots=True)
class Mutant:
    """What a backend may do wrong."""

    module: str
    """In appliance.infer."""
    old: str
    new: str
    file: str
    test: str
    caught_by: str
    """Pattern of the failure that shows it: an assertion of the test, a violation that the
    simulator has noted, or the error of this very mistake. Another failure catches nothing."""

    @property
    def change(self) -> Change:
        """For the rig."""
        return Change(f"appliance.infer.{self.module}", self.old, self.new, self.nodeid)

    @property
    def nodeid(self) -> str:
        """Of the test, for pytest."""
        return f"{self.file}::{self.test}"


MUTANTS = {
    "leaves the scheduler off, as 4.x's default has it": Mutant(
        "hailo.npu", "parameters.scheduling_algorithm = ",
        "unused = ",
        NPU, EQUAL,
        "NpuError: .*network is not active.*status 69",
    ),
    "passes a Path": Mutant(
        "hailo.device", "create_infer_model(str(self._hef.file))",
        "create_infer_model(self._hef.file)",
        NPU, EQUAL,
        "NpuError: .*incompatible function arguments",
    ),
    "names the second argument, which 4.19 renamed": Mutant(
        "hailo.device", "(str(self._hef.file))",
        "(str(self._hef.file), name=\"\")",
        NPU, EQUAL_418,
        "NpuError: .*unexpected keyword argument 'name'",
    ),
    "gives device_ids, which drops the parameters": Mutant(
        "hailo.npu", "binding.VDevice(parameters)",
        "binding.VDevice(device_ids=binding.Device.scan())",
        NPU, EQUAL,
        "NpuError: .*network is not active.*status 69",
    ),
    "leaves the input as the chip has it": Mutant(
        "hailo.device", "self._model.input(name).set_format_type",
        "str",
        NPU, EQUAL,
        r"NpuError: .*status 6\)",
    ),
    "leaves the output as the chip has it": Mutant(
        "hailo.device", "self._model.output(name).set_format_type",
        "str",
        NPU, EQUAL,
        r"NpuError: .*status 6\)",
    ),
    "has integers as the input, of as many bytes": Mutant(
        "hailo.device", "np.float32) for name, shape in inputs",
        "np.int32) for name, shape in inputs",
        NPU, EQUAL,
        "AssertionError: assert False .*allclose",
    ),
    "binds a buffer that is not writeable": Mutant(
        "hailo.device", "input(name).set_buffer(buffer)",
        "input(name).set_buffer(np.broadcast_to(buffer, buffer.shape))",
        NPU, EQUAL,
        "NpuError: .*array is not writeable",
    ),
    "binds a buffer that is not contiguous": Mutant(
        "hailo.device", "input(name).set_buffer(buffer)",
        "input(name).set_buffer(np.asfortranarray(buffer))",
        NPU, EQUAL_418,
        "AssertionError: .*takes a buffer that is not contiguous",
    ),
    "trusts the number of bytes": Mutant(
        "hailo.npu", "if list(edges.values()) != [wanted]",
        "if not edges",
        NPU, "test_numbers_that_lie_otherwise_are_refused_though_they_are_as_many[shape1]",
        "Failed: DID NOT RAISE",
    ),
    "trusts a wait that did not raise": Mutant(
        "hailo.device", "if outcomes[0].exception is not None",
        "if False",
        NPU, "test_a_failed_job_gives_an_error_and_never_its_garbage",
        "Failed: DID NOT RAISE",
    ),
    "trusts whatever the numbers are": Mutant(
        "hailo.device", "if not np.isfinite(values).all()",
        "if False",
        NPU, "test_a_failed_job_gives_an_error_and_never_its_garbage",
        "Failed: DID NOT RAISE",
    ),
    "has a callback that raises": Mutant(
        "hailo.device", "outcomes.append(completion_info)",
        "outcomes.append(completion_info); raise ValueError",
        NPU, "test_what_was_encoded_before_stays_as_it_was",
        "AssertionError: .*the callback raised ValueError",
    ),
    "hands the chip's own buffer on": Mutant(
        "hailo.npu", "encoded[0].copy()",
        "encoded[0]",
        NPU, "test_what_was_encoded_before_stays_as_it_was",
        "AssertionError: assert False .*array_equal",
    ),
    "lets go of a job that hangs, which holds the chip": Mutant(
        "hailo.device", "quietly(lambda: configured.__exit__(None, None, None))",
        "pass",
        NPU, "test_a_job_that_hangs_is_given_up_and_closing_frees_the_chip",
        "NpuError: .*in use by this very process",
    ),
    "keeps the model when it closes": Mutant(
        "hailo.device", "self._model = None\n",
        "pass\n",
        NPU, "test_closing_or_failing_to_open_frees_the_chip",
        "NpuError: .*in use by this very process",
    ),
    "raises with the binding's traceback, which holds the chip": Mutant(
        "hailo.device", "fault = explain(error, situation())\n",
        "raise explain(error, situation()) from error\n",
        NPU, "test_closing_or_failing_to_open_frees_the_chip",
        "AssertionError: .*HailoRTException.* is None",
    ),
    "shares without the service": Mutant(
        "hailo.npu", "parameters.multi_process_service = True",
        "pass",
        NPU, "test_the_chip_is_shared_through_the_service_where_all_agree",
        "Failed: DID NOT RAISE",
    ),
    "takes the chip before it knows the HEF to be for it": Mutant(
        "hailo.npu", "        each.check_chip(identity.chip)\n",
        "",
        NPU, "test_a_hef_for_another_chip_is_refused_before_the_chip_is_taken",
        "NpuError: .*expected a free chip",
    ),
    "catches what the binding says to raise, not what Device does": Mutant(
        "hailo.device", "except Exception as error:  # Device",
        "except binding.HailoRTException as error:  # Device",
        NPU, "test_driver_and_library_of_different_versions_are_both_named",
        "HailoRTStatusException: 76",
    ),
    "expects a missing binding to be an ImportError": Mutant(
        "hailo.device", "except Exception as error:  # its version",
        "except ImportError as error:  # its",
        NPU, "test_a_binding_that_cannot_be_loaded_or_is_too_old_is_a_device_error",
        "RuntimeError: _pyhailort version .* does not match",
    ),
    "looks for the status in the text alone": Mutant(
        "hailo.errors", "(error.__cause__, error)",
        "()",
        NPU, "test_driver_and_library_of_different_versions_are_both_named",
        "AssertionError: assert 'unknown' == 'versions differ'",
    ),
    "lets HailoRT write its log where we are": Mutant(
        "hailo.device", "os.environ.setdefault(",
        "os.environ.get(",
        NPU, "test_hailort_writes_no_log_into_the_working_directory",
        "KeyError: 'HAILORT_LOGGER_PATH'",
    ),
    "goes on with an NPU that failed": Mutant(
        "hailo.failover", "self._failed, self._npu = npu, None",
        "pass",
        ENCODER, FAILED,
        r"AssertionError: assert \('cpu' == 'hailo8'",
    ),
    "closes nothing": Mutant(
        "hailo.failover", CLOSING,
        "        pass\n",
        ENCODER, "test_closing_frees_the_chip_also_after_a_fault",
        r"AssertionError: assert \[Holder\(.*== \[\]",
    ),
    "closes nothing but an NPU that works": Mutant(
        "hailo.failover", CLOSING,
        CLOSING.replace("self._failed, ", "None, ").replace("self._failed = ", ""),
        ENCODER, "test_closing_frees_the_chip_also_after_a_fault",
        r"AssertionError: assert \[Holder\(.*== \[\]",
    ),
    "trusts the number of bytes of a decoder": Mutant(
        "hailo.decoder_network",
        "rows != [(bundle.positions, bundle.d_model), (length, bundle.d_model)]",
        "False",
        DECODER, "test_numbers_that_lie_otherwise_are_refused_though_they_are_as_many",
        "Failed: DID NOT RAISE",
    ),
    "hands the buffers of a decoder on": Mutant(
        "hailo.decoder_network", "every, self._kept, axis=-1)",
        "every, self._kept, axis=-1, out=self.__dict__.get('k'))\n        self.k = logits",
        DECODER, "test_logits_of_a_step_stay_as_they_were",
        "AssertionError: .*array_equal",
    ),
    "joins the parts of the logits as they are listed": Mutant(
        "hailo.decoder_network", "self._parts = self._hef.output_order",
        "self._parts = tuple(outputs)",
        DECODER, LOGITS,
        "AssertionError: .* < 0.001",
    ),
    "joins the parts of the logits by the numbers in their names": Mutant(
        "hailo.decoder_network", "self._parts = self._hef.output_order",
        "self._parts = tuple(sorted(outputs, key=lambda name: int(name[12:])))",
        DECODER, LOGITS,
        "AssertionError: .* < 0.001",
    ),
    "takes a decoder's inputs as they are listed": Mutant(
        "hailo.decoder_network", "states, embedded = sorted(self.model.inputs)",
        "states, embedded = self.model.inputs",
        DECODER, LOGITS,
        "ValueError: cannot reshape array",
    ),
    "forgets where the tokens stand": Mutant(
        "hailo.decoder_network", " + self._places",
        "",
        DECODER, LOGITS,
        "AssertionError: .* < 0.001",
    ),
    "starts with a part of the prompt": Mutant(
        "hailo.decoder_network", "self._tokens += tokens",
        "self._tokens += tokens[-1:]",
        DECODER, TOKENS,
        "AssertionError: .*At index 0 diff",
    ),
    "writes more than the sequence holds": Mutant(
        "decoder", "min(network.capacity - len(prompt), self.token_limit(duration_s))",
        "self.token_limit(duration_s)",
        DECODER, "test_a_text_longer_than_the_sequence_is_cut_there_and_says_so[home]",
        r"ValueError: could not broadcast .*\(41,\) into shape \(40,\)",
    ),
    "keeps a chip that failed the decoder": Mutant(
        "hailo.decoder", "npu.fault = error",
        "pass",
        DECODER, LOST,
        r"AssertionError: assert \('hailo8' == 'cpu'",
    ),
    "loses the window with the chip": Mutant(
        "hailo.decoder", "except NpuError as error:",
        "except ZeroDivisionError as error:",
        DECODER, LOST,
        "NpuError: .*decoding: HailoRT failed inside",
    ),
    "closes the encoder alone": Mutant(
        "hailo.npu", "self.decoder.model.close()",
        "pass",
        DECODER, "test_a_chip_that_the_encoder_lost_is_lost_to_the_decoder_too",
        "AssertionError: Regex pattern did not match.*'the chip was closed'",
    ),
    "keeps the chip when the decoder will not do": Mutant(
        "hailo.npu", "\"decoding\")\n        except RoomscribeError:\n            self.close()",
        "\"decoding\")\n        except RoomscribeError:\n            pass",
        DECODER, "test_closing_frees_the_chip_whatever_happened",
        r"AssertionError: assert False .*all\(",
    ),
}  # fmt: skip
SLIPS = {
    "misspells a name in a method": Mutant(
        "hailo.npu", "encoded[0].copy()", "encodet[0].copy()",
        NPU, "test_what_was_encoded_before_stays_as_it_was", "AssertionError: ",
    ),
    "misspells a name where HailoRT's errors are explained": Mutant(
        "hailo.device", "self._model.set_batch_size(1)", "self._modle.set_batch_size(1)",
        NPU, "test_what_was_encoded_before_stays_as_it_was", "AssertionError: ",
    ),
    "gives an argument too many": Mutant(
        "hailo.device", "quietly(lambda: configured.__exit__(None, None, None))", "quietly(1, 2)",
        NPU, "test_closing_or_failing_to_open_frees_the_chip", "NpuError: .*this very process",
    ),
}  # fmt: skip
"""No test is needed to find these, so that they fail one says nothing of it."""
EVERY = MUTANTS | SLIPS | {
    mutant.nodeid: Mutant("hailo.npu", "", "", mutant.file, mutant.test, "")
    for mutant in MUTANTS.values()
}  # fmt: skip


@pytest.fixture(scope="module")
def failures(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[str]]:
    """What failed for each mutant of this session, all run in one go."""
    asked = [
        str(item.callspec.params["name"])
        for item in request.session.items
        if item.path == request.path and isinstance(item, pytest.Function)
    ]
    found = run([EVERY[name].change for name in asked], tmp_path_factory.mktemp("mutants"))
    return dict(zip(asked, found, strict=True))


def is_caught(mutant: Mutant, failures: list[str]) -> bool:
    return any(re.match(mutant.caught_by, failure) for failure in failures)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_backend_is_caught_that(failures: dict[str, list[str]], name: str) -> None:
    assert is_caught(MUTANTS[name], failures[name]), failures[name]


@pytest.mark.parametrize("name", SLIPS)
def test_a_mutant_counts_for_nothing_that(failures: dict[str, list[str]], name: str) -> None:
    assert failures[name] and not is_caught(SLIPS[name], failures[name])


@pytest.mark.parametrize("name", dict.fromkeys(mutant.nodeid for mutant in MUTANTS.values()))
def test_the_backend_as_it_is_passes(failures: dict[str, list[str]], name: str) -> None:
    assert failures[name] == []
