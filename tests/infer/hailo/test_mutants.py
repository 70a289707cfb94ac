"""A backend that ignores any of HailoRT's traps fails: each mutant is caught by a test of ours."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest
from rigs.mutants import Change, run

# the first test pays for all mutants, one after the other
pytestmark = pytest.mark.timeout(600)

NPU, DECODER = "tests/infer/hailo/test_npu.py", "tests/infer/hailo/test_decoder.py"
ENCODER, PIPELINE = "tests/infer/test_encoder.py", "tests/daemon/test_pipeline.py"
EQUAL = "test_every_version_and_chip_gives_the_states_of_the_cpu[4.23.0-HAILO8L-HAILO8L-hailo8l]"
EQUAL_5_4 = (
    "test_every_version_and_chip_gives_the_states_of_the_cpu[5.4.0-HAILO10H-HAILO10H-hailo10h]"
)
LOGITS = "test_the_logits_are_those_of_the_cpu[home]"
TOKENS = "test_the_tokens_are_those_of_the_cpu_where_the_sequence_is_long_enough[0.0-rules0-home]"
LOST = "test_a_chip_lost_in_the_middle_of_a_text_gives_the_cpus_text_and_comes_back[a failed job]"
FAILED = (
    "test_a_window_that_the_npu_fails_comes_from_the_cpu_at_once_and_the_npu_comes_back"
    "[a failed job]"
)
DEAF = "test_nobody_waits_for_a_chip_that_hangs_and_cannot_be_given_up"
CLOSING = "test_closing_does_not_wait_for_a_chip_that_hangs"
ALONE = "test_a_hailo_10h_without_a_service_is_shared_by_its_group_alone"
BY_GROUP = "by group_id SHARED alone, without the hailort service (NPU: opening the"
TOLD = "test_what_goes_wrong_with_the_encoder_is_told_before_anything_waits"


@dataclass(frozen=True, slots=True)
class Mutant:
    """What a backend may do wrong."""

    module: str
    """In appliance."""
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
        return Change(f"appliance.{self.module}", self.old, self.new, self.nodeid)

    @property
    def nodeid(self) -> str:
        """Of the test, for pytest."""
        return f"{self.file}::{self.test}"


MUTANTS = {
    "leaves the scheduler off, as 4.x's default has it": Mutant(
        "infer.hailo.npu", "parameters.scheduling_algorithm = ",
        "unused = ",
        NPU, EQUAL,
        "NpuError: .*network is not active.*status 69",
    ),
    "passes a Path": Mutant(
        "infer.hailo.device", "create_infer_model(str(self._hef.file))",
        "create_infer_model(self._hef.file)",
        NPU, EQUAL,
        "NpuError: .*incompatible function arguments",
    ),
    "gives device_ids, which drops the parameters": Mutant(
        "infer.hailo.npu", "binding.VDevice(parameters)\n\n",
        "binding.VDevice(device_ids=binding.Device.scan())\n\n",
        NPU, EQUAL,
        "NpuError: .*network is not active.*status 69",
    ),
    "leaves the input as the chip has it": Mutant(
        "infer.hailo.device", "self._model.input(name).set_format_type",
        "str",
        NPU, EQUAL,
        r"NpuError: .*status 6\)",
    ),
    "leaves the output as the chip has it": Mutant(
        "infer.hailo.device", "self._model.output(name).set_format_type",
        "str",
        NPU, EQUAL,
        r"NpuError: .*status 6\)",
    ),
    "has integers as the input, of as many bytes": Mutant(
        "infer.hailo.device", "np.float32) for name, shape in inputs",
        "np.int32) for name, shape in inputs",
        NPU, EQUAL,
        "NpuError: .*expected numbers, found NaN",
    ),
    "binds a buffer that is not writeable": Mutant(
        "infer.hailo.device", "input(name).set_buffer(buffer)",
        "input(name).set_buffer(np.broadcast_to(buffer, buffer.shape))",
        NPU, EQUAL,
        "NpuError: .*array is not writeable",
    ),
    "binds a buffer that is not contiguous": Mutant(
        "infer.hailo.device", "input(name).set_buffer(buffer)",
        "input(name).set_buffer(np.asfortranarray(buffer))",
        NPU, EQUAL,
        "NpuError: .*Buffer must be C_CONTIGUOUS",
    ),
    "trusts the number of bytes": Mutant(
        "infer.hailo.npu", "if list(edges.values()) != [wanted]",
        "if not edges",
        NPU, "test_numbers_that_lie_otherwise_are_refused_though_they_are_as_many[shape1]",
        "Failed: DID NOT RAISE",
    ),
    "trusts a wait that did not raise": Mutant(
        "infer.hailo.device", "if outcomes[0].exception is not None",
        "if False",
        NPU, "test_a_failed_job_gives_an_error_and_never_its_garbage",
        "Failed: DID NOT RAISE",
    ),
    "trusts whatever the numbers are": Mutant(
        "infer.hailo.device", "if not np.isfinite(values).all()",
        "if False",
        NPU, "test_a_failed_job_gives_an_error_and_never_its_garbage",
        "Failed: DID NOT RAISE",
    ),
    "has a callback that raises": Mutant(
        "infer.hailo.device", "outcomes.append(completion_info)",
        "outcomes.append(completion_info); raise ValueError",
        NPU, "test_what_was_encoded_before_stays_as_it_was",
        "AssertionError: .*the callback raised ValueError",
    ),
    "hands the chip's own buffer on": Mutant(
        "infer.hailo.npu", "states: States = encoded[0].copy()",
        "states = encoded[0]",
        NPU, "test_what_was_encoded_before_stays_as_it_was",
        "NpuError: .*the window before, bit for bit",
    ),
    "lets go of a job that hangs, which holds the chip": Mutant(
        "infer.hailo.device", "quietly(lambda: configured.__exit__(None, None, None))",
        "pass",
        NPU, "test_a_job_that_hangs_is_given_up_and_closing_frees_the_chip",
        "NpuError: .*in use by this very process",
    ),
    "keeps the model when it closes": Mutant(
        "infer.hailo.device", "self._model = None\n",
        "pass\n",
        NPU, "test_closing_or_failing_to_open_frees_the_chip",
        "NpuError: .*in use by this very process",
    ),
    "raises with the binding's traceback, which holds the chip": Mutant(
        "infer.hailo.device", "fault = explain(error, situation())\n",
        "raise explain(error, situation()) from error\n",
        NPU, "test_closing_or_failing_to_open_frees_the_chip",
        "AssertionError: .*HailoRTException.* is None",
    ),
    "shares without the service": Mutant(
        "infer.hailo.npu", "parameters.multi_process_service = True",
        "pass",
        NPU, "test_the_chip_is_shared_through_the_service_where_all_agree",
        "Failed: DID NOT RAISE",
    ),
    "takes the chip before it knows the HEF to be for it": Mutant(
        "infer.hailo.npu", "        each.check_chip(identity.chip)\n",
        "",
        NPU, "test_a_hef_for_another_chip_is_refused_before_the_chip_is_taken",
        "NpuError: .*the chip is in use",
    ),
    "catches what the binding says to raise, not what Device does": Mutant(
        "infer.hailo.device", "except Exception as error:  # Device",
        "except binding.HailoRTException as error:  # Device",
        NPU, "test_driver_and_library_of_different_versions_are_both_named",
        "HailoRTStatusException: 76",
    ),
    "expects a missing binding to be an ImportError": Mutant(
        "infer.hailo.device", "except Exception as error:  # its version",
        "except ImportError as error:  # its",
        NPU, "test_a_binding_that_cannot_be_loaded_or_is_too_old_is_a_device_error",
        "RuntimeError: _pyhailort version .* does not match",
    ),
    "looks for the status in the text alone": Mutant(
        "infer.hailo.errors", "(error.__cause__, error)",
        "()",
        NPU, "test_driver_and_library_of_different_versions_are_both_named",
        "AssertionError: assert 'unknown' == 'versions differ'",
    ),
    "lets HailoRT write its log where we are": Mutant(
        "infer.hailo.device", "os.environ.setdefault(",
        "os.environ.get(",
        NPU, "test_hailort_writes_no_log_into_the_working_directory",
        "KeyError: 'HAILORT_LOGGER_PATH'",
    ),
    "goes on with an NPU that failed": Mutant(
        "infer.hailo.failover", "        self._npu = None\n        self._fail(error)",
        "        self._fail(error)",
        ENCODER, FAILED,
        r"AssertionError: assert \('cpu' == 'hailo8'",
    ),
    "closes nothing": Mutant(
        "infer.hailo.failover", "        if npu:\n            npu.close(0.0)\n",
        "        self.kept = npu\n",
        ENCODER, "test_closing_frees_the_chip_also_after_a_fault",
        r"AssertionError: assert \[Holder\(.*== \[\]",
    ),
    "closes nothing but an NPU that works": Mutant(
        "infer.hailo.failover", "        self._fail(error)\n        npu.close(0.0)\n",
        "        self._fail(error)\n        self.kept = npu\n",
        ENCODER, "test_closing_frees_the_chip_also_after_a_fault",
        r"AssertionError: assert \[Holder\(.*== \[\]",
    ),
    "takes HailoRT 4.18, whose outputs are those of the first job": Mutant(
        "infer.hailo.device", "OLDEST = (4, 19)",
        "OLDEST = (4, 18)",
        ENCODER, "test_a_library_that_is_too_old_leaves_every_window_to_the_cpu",
        "AssertionError: .*the window before, bit for bit",
    ),
    "trusts states that are those of the window before": Mutant(
        "infer.hailo.npu", "if is_changed and np.array_equal(states, self._last)",
        "if False",
        NPU, "test_equal_states_are_a_fault_of_other_sound_alone",
        "Failed: DID NOT RAISE",
    ),
    "takes equal states of equal sound for a fault": Mutant(
        "infer.hailo.npu", "if is_changed and np.array_equal(states, self._last)",
        "if np.array_equal(states, self._last)",
        NPU, "test_equal_states_are_a_fault_of_other_sound_alone",
        "NpuError: .*different sound gave the states",
    ),
    "waits for a chip that hangs to be closed": Mutant(
        "infer.hailo.failover", "self._fail(error)\n        npu.close(0.0)",
        "self._fail(error)\n        npu.close(60.0)",
        ENCODER, DEAF,
        r"AssertionError: assert \(\d.* < 1.0",
    ),
    "opens a chip that hangs in the encoder's thread": Mutant(
        "infer.hailo.failover", "is_over(now_s):\n            self._begin(self._open, self._use)",
        "is_over(now_s):\n            self._begin(self._open, self._use); self.settle(60.0)",
        ENCODER, DEAF,
        r"AssertionError: assert \(\d.* < 1.0",
    ),
    "begins anew while the last attempt hangs": Mutant(
        "infer.hailo.failover", "        if self._task:\n            return\n",
        "",
        ENCODER, DEAF,
        r"AssertionError: ",
    ),
    "waits for a chip that hangs when it stops": Mutant(
        "infer.hailo.failover", "        is_closing(CLOSE_WITHIN_S)",
        "        is_closing(60.0)",
        ENCODER, CLOSING,
        r"AssertionError: assert \d+\.\d+ < ",
    ),
    "waits at a start for a chip that hangs": Mutant(
        "infer.hailo.npu", "CLOSE_WITHIN_S = 1.0",
        "CLOSE_WITHIN_S = 60.0",
        ENCODER, "test_a_start_does_not_wait_for_a_chip_that_hangs",
        r"AssertionError: assert \(\d+\.\d+ < ",
    ),
    "opens a chip that it has not let go of": Mutant(
        "infer.hailo.npu", "    if is_closing():\n",
        "    if False:\n",
        ENCODER, CLOSING,
        "AssertionError: Regex pattern did not match.*in use by this very process",
    ),
    "says nothing of a chip that is never let go of": Mutant(
        "infer.hailo.failover", "now_s - self._failed_s > STUCK_AFTER_S",
        "False",
        ENCODER, CLOSING,
        "AssertionError: assert 'does not release it",
    ),
    "keeps a chip that was opened too late": Mutant(
        "infer.hailo.failover", "            if not self._closed:\n",
        "            if True:\n",
        ENCODER, "test_a_chip_that_is_opened_too_late_is_let_go_of",
        "AssertionError: ",
    ),
    "tells of the encoder only while no window waits": Mutant(
        "daemon.pipeline",
        "            report_backend(self.health, parts.transcriber)\n            if task:\n",
        "            if task:\n",
        PIPELINE, TOLD,
        "AssertionError: the condition did not hold",
    ),
    "tells of the encoder once sound has come": Mutant(
        "daemon.assembly", "        report_backend(self.health, self.model)\n",
        "",
        PIPELINE, "test_what_is_wrong_with_the_encoder_at_the_start_is_in_the_first_state",
        r"AssertionError: assert \('running'",
    ),
    "shares a Hailo-10H through the service alone": Mutant(
        "infer.hailo.npu", "NO_SERVICE = (6, 7, 77, 79, 89)",
        "NO_SERVICE = ()",
        NPU, f"{ALONE}[5.2.0-True-{BY_GROUP}]",
        "NpuError: .*has no service for this chip",
    ),
    "shares a Hailo-8 by its group, which shares nothing there": Mutant(
        "infer.hailo.npu", 'self.chip != "hailo10h" or ',
        "",
        NPU, "test_the_chip_is_shared_through_the_service_where_all_agree",
        "Failed: DID NOT RAISE",
    ),
    "takes a missing service for a wrong NumPy": Mutant(
        "infer.hailo.errors", "if situation.shared:",
        "if False:",
        NPU, "test_status_6_of_a_library_without_a_service_is_no_numpy",
        "AssertionError: assert .*'numpy' == 'service'",
    ),
    "sends a user of NumPy 2 to Debian's NumPy": Mutant(
        "infer.hailo.errors", "there is one [encoder] backend = cpu",
        "there is one use python3-numpy",
        NPU, "test_status_6_names_numpy_2",
        "AssertionError: ",
    ),
    "trusts the number of bytes of a decoder": Mutant(
        "infer.hailo.decoder_network",
        "rows != [(bundle.positions, bundle.d_model), (length, bundle.d_model)]",
        "False",
        DECODER, "test_numbers_that_lie_otherwise_are_refused_though_they_are_as_many",
        "Failed: DID NOT RAISE",
    ),
    "hands the buffers of a decoder on": Mutant(
        "infer.hailo.decoder_network", "joined, self._kept, axis=-1)",
        "joined, self._kept, axis=-1, out=self.__dict__.get('k'))\n        self.k = logits",
        DECODER, "test_logits_of_a_step_stay_as_they_were",
        "AssertionError: .*array_equal",
    ),
    "joins the parts of the logits as they are listed": Mutant(
        "infer.hailo.decoder_network", "self._parts = self._hef.output_order",
        "self._parts = tuple(outputs)",
        DECODER, LOGITS,
        "AssertionError: .* < 0.001",
    ),
    "joins the parts of the logits by the numbers in their names": Mutant(
        "infer.hailo.decoder_network", "self._parts = self._hef.output_order",
        "self._parts = tuple(sorted(outputs, key=lambda name: int(name[12:])))",
        DECODER, LOGITS,
        "AssertionError: .* < 0.001",
    ),
    "takes a decoder's inputs as they are listed": Mutant(
        "infer.hailo.decoder_network", "states, embedded = sorted(self.model.inputs)",
        "states, embedded = self.model.inputs",
        DECODER, LOGITS,
        "ValueError: cannot reshape array",
    ),
    "forgets where the tokens stand": Mutant(
        "infer.hailo.decoder_network", " + self._positions",
        "",
        DECODER, LOGITS,
        "AssertionError: .* < 0.001",
    ),
    "starts with a part of the prompt": Mutant(
        "infer.hailo.decoder_network", "self._tokens += tokens",
        "self._tokens += tokens[-1:]",
        DECODER, TOKENS,
        "AssertionError: .*At index 0 diff",
    ),
    "writes more than the sequence holds": Mutant(
        "infer.decoder", "min(network.capacity - len(prompt), self.token_limit(duration_s))",
        "self.token_limit(duration_s)",
        DECODER, "test_a_text_longer_than_the_sequence_is_cut_there_and_says_so[home]",
        r"ValueError: could not broadcast .*\(41,\) into shape \(40,\)",
    ),
    "keeps a chip that failed the decoder": Mutant(
        "infer.hailo.decoder", "npu.fault = error",
        "pass",
        DECODER, LOST,
        r"AssertionError: assert \('hailo8' == 'cpu'",
    ),
    "loses the window with the chip": Mutant(
        "infer.hailo.decoder", "except NpuError as error:",
        "except ZeroDivisionError as error:",
        DECODER, LOST,
        "NpuError: .*decoding: HailoRT failed inside",
    ),
    "closes the encoder alone": Mutant(
        "infer.hailo.npu", "self.decoder.model.close()",
        "pass",
        DECODER, "test_a_chip_that_the_encoder_lost_is_lost_to_the_decoder_too",
        "AssertionError: Regex pattern did not match.*'the chip was closed'",
    ),
    "keeps the chip when the decoder will not do": Mutant(
        "infer.hailo.npu",
        "\"decoding\")\n        except RoomscribeError:\n            self.close()",
        "\"decoding\")\n        except RoomscribeError:\n            pass",
        DECODER, "test_closing_frees_the_chip_whatever_happened",
        r"AssertionError: assert False .*all\(",
    ),
    "reads the board's name, which 5.4 gives up": Mutant(
        "infer.hailo.device", '"product_name"', '"board_name"',
        NPU, EQUAL_5_4,
        "DeprecationWarning: 'board_name' is deprecated",
    ),
    "takes every version for a known one": Mutant(
        "infer.hailo.device", "if numbers > known", "if not known",
        NPU, "test_a_version_newer_than_the_compared_ones_is_recognised[4.24.0-4.23.0]",
        "AssertionError: assert '' == '4.23.0'",
    ),
    "has no words for a broken USB connection": Mutant(
        "infer.hailo.errors", "\n    98: (", "\n    1098: (",
        NPU, "test_statuses_of_5_4_are_messages_with_their_fix[5.4.0-98-usb-USB connection]",
        "AssertionError: assert .*'unknown' == ",
    ),
} | {
    f"has no words for status {status}": Mutant(
        "infer.hailo.errors", f"\n    {status}: (",
        f"\n    10{status}: (",
        NPU, f"test_every_status_is_a_message_with_its_fix[{status}]",
        "AssertionError: assert .*'unknown' == ",
    )
    for status in (3, 7, 15, 16, 18, 47)
}  # fmt: skip
SLIPS = {
    "misspells a name in a method": Mutant(
        "infer.hailo.npu", "states: States = encoded[0].copy()", "states = encodet[0].copy()",
        NPU, "test_what_was_encoded_before_stays_as_it_was", "AssertionError: ",
    ),
    "misspells a name where HailoRT's errors are explained": Mutant(
        "infer.hailo.device", "self._model.set_batch_size(1)", "self._modle.set_batch_size(1)",
        NPU, "test_what_was_encoded_before_stays_as_it_was", "AssertionError: ",
    ),
    "gives an argument too many": Mutant(
        "infer.hailo.device", "quietly(lambda: configured.__exit__(None, None, None))",
        "quietly(1, 2)",
        NPU, "test_closing_or_failing_to_open_frees_the_chip", "NpuError: .*this very process",
    ),
}  # fmt: skip
"""No test is needed to find these, so that they fail one says nothing of it."""
EVERY = MUTANTS | SLIPS | {
    mutant.nodeid: Mutant("infer.hailo.npu", "", "", mutant.file, mutant.test, "")
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
