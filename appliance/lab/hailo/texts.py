"""Scripts and README of an export for Hailo's compiler.

The commands and calls are those that public projects use with Hailo's Dataflow Compiler; nothing
of this was ever run through it.
"""

from __future__ import annotations

from dataclasses import dataclass

from appliance.lab.hailo.calibration import DECODER_SET, ENCODER_SET
from appliance.lab.hailo.graphs import END_NODES, START_NODES
from appliance.model import CHIP_NAMES

CHIPS = tuple(CHIP_NAMES)
ENCODER_SCRIPT, DECODER_SCRIPT = "compile_encoder.sh", "compile_decoder.py"


@dataclass(frozen=True, slots=True)
class Sizes:
    """What an export is of."""

    name: str
    """Of the model, as in the file names of the host's tables."""
    window_s: float
    n_mels: int
    positions: int
    d_model: int
    vocabulary: int
    length: int
    """Tokens of the decoder's fixed sequence."""

    @property
    def network(self) -> str:
        """The name, as the compiler takes it."""
        return "".join(sign if sign.isalnum() else "_" for sign in self.name)


def encoder_script(sizes: Sizes) -> str:
    """A shell script that makes the encoder's HEF."""
    network = f"{sizes.network}_encoder"
    return f"""\
#!/bin/sh
# Makes CHIP/{network}.hef from encoder.onnx with Hailo's Dataflow Compiler (x86-64).
#     ./{ENCODER_SCRIPT} {"|".join(CHIPS)} [MODEL_SCRIPT.alls]
set -eu
cd "$(dirname "$0")"
chip=${{1:?give a chip: {", ".join(CHIPS)}}}
case $chip in
    {"|".join(CHIPS)}) ;;
    *) echo "chip: expected {", ".join(CHIPS)}, found $chip" >&2; exit 64 ;;
esac
if ! test -f {ENCODER_SET}; then
    echo "{ENCODER_SET}: not there; export again with recordings to calibrate by" >&2
    exit 66
fi
if ! command -v hailo >/dev/null; then
    echo "hailo: command not found; activate the environment of the Dataflow Compiler" >&2
    exit 69
fi
mkdir -p "$chip"
hailo parser onnx encoder.onnx --net-name {network} \\
    --hw-arch "$chip" --har-path "$chip/{network}.har"
hailo optimize "$chip/{network}.har" --hw-arch "$chip" \\
    --calib-set-path {ENCODER_SET} ${{2:+--model-script "$2"}} \\
    --output-har-path "$chip/{network}_optimized.har"
hailo compiler "$chip/{network}_optimized.har" --hw-arch "$chip" --output-dir "$chip"
"""


def decoder_script(sizes: Sizes) -> str:
    """A Python script that makes the decoder's HEF."""
    network = f"{sizes.network}_decoder"
    return f'''\
"""Makes CHIP/{network}.hef from decoder.onnx with Hailo's Dataflow Compiler (x86-64).

    python {DECODER_SCRIPT} {"|".join(CHIPS)} [MODEL_SCRIPT.alls]

In Python, for the command line takes a calibration set of one input only.
"""

import sys
from pathlib import Path

CHIPS = {CHIPS!r}
NETWORK = "{network}"
HERE = Path(__file__).resolve().parent


def main() -> None:
    if len(sys.argv) not in (2, 3) or sys.argv[1] not in CHIPS:
        sys.exit(f"usage: {{sys.argv[0]}} {{'|'.join(CHIPS)}} [MODEL_SCRIPT.alls]")
    if not (HERE / "{DECODER_SET}").is_file():
        sys.exit("{DECODER_SET}: not there; export again with recordings to calibrate by")
    try:
        import numpy as np
        from hailo_sdk_client import ClientRunner
    except ImportError as error:
        sys.exit(f"{{error.name}}: not installed; activate the Dataflow Compiler's environment")

    chip, out = sys.argv[1], HERE / sys.argv[1]
    out.mkdir(exist_ok=True)
    runner = ClientRunner(hw_arch=chip)
    runner.translate_onnx_model(
        str(HERE / "decoder.onnx"),
        NETWORK,
        start_node_names={list(START_NODES)!r},
        end_node_names={list(END_NODES)!r},
    )
    runner.save_har(str(out / f"{{NETWORK}}.har"))
    if len(sys.argv) == 3:
        runner.load_model_script(sys.argv[2])
    with np.load(HERE / "{DECODER_SET}") as calibration:
        runner.optimize(dict(calibration))
    runner.save_har(str(out / f"{{NETWORK}}_optimized.har"))
    (out / f"{{NETWORK}}.hef").write_bytes(runner.compile())


if __name__ == "__main__":
    main()
'''


def readme(sizes: Sizes, windows: tuple[int, int]) -> str:
    """README.txt of an export with that many windows in its two calibration sets."""
    title = f"{sizes.name}: Whisper for Hailo's Dataflow Compiler"
    parts = (_contents(sizes, windows), _encoder_notes(sizes, windows[0]), _decoder_notes(sizes))
    return "\n".join((title, "=" * len(title), "", *parts, UNVERIFIED))


def _contents(sizes: Sizes, windows: tuple[int, int]) -> str:
    mel = f"(1, {sizes.n_mels}, 1, {2 * sizes.positions})"
    calibration = f"(n, 1, {2 * sizes.positions}, {sizes.n_mels})"
    states = f"(1, {sizes.positions}, {sizes.d_model})"
    return f"""\
NOTHING HERE WAS EVER RUN THROUGH THE COMPILER. The graphs compute what transformers' Whisper
computes (Roomscribe's tests compare them in float32), and they have the form of the exports from
which Hailo makes its own Whisper HEFs. Whether they compile, and what is lost by it, shows only
when you do it.

What is here
  encoder.onnx            mel {mel} -> states {states}
  {ENCODER_SET}           {windows[0]} windows of recordings, {calibration} float32: the
                          encoder's input with its channels last
  {ENCODER_SCRIPT}      parser, optimize, compiler
  decoder.onnx            states and {sizes.length} placed embeddings -> logits in four parts
  {DECODER_SET}   {windows[1]} windows (absent if 0)
  {DECODER_SCRIPT}      the same three steps
  decoder_assets/         what the host looks up: token embedding and positions
  report.json             what was checked, size and SHA-256 of each file

What you need
  An x86-64 computer with Linux and Hailo's Dataflow Compiler: 3.x for hailo8 and hailo8l, 5.x for
  hailo10h, from Hailo's developer zone (behind an account). A GPU if there is one: without, the
  optimization of an encoder can take hours.
"""


def _encoder_notes(sizes: Sizes, windows: int) -> str:
    frames = f"(1, {2 * sizes.positions}, {sizes.n_mels})"
    return f"""\
The encoder
  sh {ENCODER_SCRIPT} hailo8

  Is all that Roomscribe needs, for its decoder runs on the CPU. The HEF takes {frames} and
  gives (1, {sizes.positions}, {sizes.d_model}); to use it:

  roomscribe model add FOLDER --window {sizes.window_s:g} --hef FILE

  - The calibration set is to sound like what the model will hear: the same microphone, rooms and
    voices. Hailo's model scripts use 64 windows at the least, its Model Zoo recommends 1024; here
    are {windows}.
  - Hailo publishes whisper-tiny for 10 s. Of whisper-base it says that 10 s do not compile for
    Hailo-8, and publishes 5 s.
  - Hailo's model scripts (*.alls) call layers by their number in the graph. The order here is that
    of the simplified torch export, so a script made for tiny or base may fit; it goes behind the
    chip.
  - The compiler reports a signal-to-noise ratio. The published tiny encoder has 15 dB in its name;
    in that public log, with the fine-tuning cut short, it was 9 dB.
"""


def _decoder_notes(sizes: Sizes) -> str:
    start, end, name = " and ".join(START_NODES), ", ".join(END_NODES), sizes.name
    return f"""\
The decoder
  python {DECODER_SCRIPT} hailo8

  Only for those who want the whole model on the NPU, to compare. With both HEFs, of the same
  window, and DECODER's folder with the two tables of decoder_assets,

  roomscribe model add FOLDER --window {sizes.window_s:g} --hef ENCODER
  roomscribe benchmark --rows hybrid,npu --npu-decoder FOLDER_OF_DECODER

  measure it beside the CPU's decoder. Each step computes all {sizes.length} tokens again, the
  prompt among them, there is no cache, a text ends at its {sizes.length} tokens, and the encoder
  waits for the chip meanwhile: public measurements found it slower than a decoder on the CPU of a
  Raspberry Pi 5.
  - Its calibration set holds, for each window of the recordings, the encoder's states and the
    placed embeddings of the prompt and of the text that the model itself wrote, on the CPU.
  - The parser starts at {start}, and ends at
    {end}.
  - The HEF's second input is ({sizes.length}, 1, {sizes.d_model}); row i is
    token_embedding_weight_{name}.npy[token i] + onnx_add_input_{name}.npy[i],
    and token 0 fills the end.
  - The four outputs side by side are the {sizes.vocabulary} logits; row i is about token i + 1.
    Roomscribe reads their order from the HEF.
"""


UNVERIFIED = """\
Taken from public projects that use the compiler, not from the compiler itself
  hailo parser onnx FILE --net-name --hw-arch --har-path; hailo optimize HAR --hw-arch
  --calib-set-path --model-script --output-har-path; hailo compiler HAR --hw-arch --output-dir;
  ClientRunner.translate_onnx_model, save_har, load_model_script, optimize, compile.

Not verified at all
  That your version parses both graphs; that the decoder's mask (-100 for tokens to come) quantises
  well; under which name `hailo compiler` writes the HEF.
"""
