"""The examples for engineers run as docs/reuse.md shows them."""

import re
import subprocess
import sys

import numpy as np
import pytest
from rigs.checkout import ROOT
from rigs.command import captured
from rigs.recordings import sentences
from rigs.word_errors import word_errors

from appliance.infer import CpuEncoder, Decoder, Tokenizer, log_mel, window_mel
from appliance.model.bundle import Bundle
from appliance.records import SAMPLE_RATE

EXAMPLE, PAGE = ROOT / "examples/decode.py", ROOT / "docs/reuse.md"


ENVIRONMENT = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}


def run(*given: str) -> subprocess.CompletedProcess[str]:
    return captured(sys.executable, EXAMPLE, *given, env=ENVIRONMENT)


def test_the_example_writes_the_text_of_a_file(built_in: Bundle) -> None:
    sentence = sentences()[0]
    done = run(str(sentence.file), str(built_in.folder))
    assert done.returncode == 0, done.stderr
    wrong, words = word_errors(sentence.text, done.stdout)
    assert wrong <= words // 4, done.stdout


@pytest.mark.parametrize(
    ("given", "said"),
    [(["/no/file.wav"], "decode.py: /no/file.wav: no such file"), ([], "decode.py FILE [MODEL]")],
)
def test_wrong_use_of_the_example_is_one_clear_message(given: list[str], said: str) -> None:
    done = run(*given)
    assert done.returncode == 1
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_the_page_shows_the_lines_of_the_example() -> None:
    page = PAGE.read_text(encoding="utf-8")
    [shown] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert shown in EXAMPLE.read_text(encoding="utf-8")


def test_states_of_any_encoder_are_decoded(built_in: Bundle) -> None:
    """As those of a HEF or of numpy: here the CPU's with noise 30 dB below them."""
    samples = np.random.default_rng(1).standard_normal(SAMPLE_RATE).astype(np.float32) * 0.01
    mel = log_mel(samples, built_in.n_mels, built_in.frames)
    assert mel.shape == (built_in.frames, built_in.n_mels)
    states = CpuEncoder(built_in, 1).encode(mel)
    assert states.shape == (built_in.positions, built_in.d_model)
    noise = np.random.default_rng(2).standard_normal(states.shape).astype(np.float32)
    decoded = Decoder(built_in, 1).decode(states + noise * states.std() * 10**-1.5, 1.0)
    assert len(decoded.logprobs) == len(decoded.tokens) + decoded.ended
    assert isinstance(Tokenizer.open(built_in).detokenize(decoded.tokens), str)
    whole = window_mel(np.zeros(0, np.int16), built_in.n_mels, built_in.frames)
    assert whole.shape == mel.shape
