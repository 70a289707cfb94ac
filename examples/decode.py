"""Write the text of a sound file with Roomscribe's cached decoder: see docs/reuse.md.

python3 examples/decode.py FILE [MODEL]
"""

import sys

from appliance.capture import Recording, Segmenter, VoiceDetector
from appliance.config import Settings
from appliance.errors import RoomscribeError
from appliance.infer import CpuEncoder, Decoder, Tokenizer, window_mel
from appliance.model import load_bundle
from appliance.records import Window


def write_texts(file: str, model: str = "tiny.en") -> None:
    """Print a line for each window of speech in the file."""
    bundle, settings = load_bundle(model), Settings()
    encoder, decoder = CpuEncoder(bundle, threads=1), Decoder(bundle, threads=1)
    tokenizer = Tokenizer.open(bundle)
    segmenter = Segmenter(VoiceDetector(settings.voice), settings.segmenter, bundle.window_s)
    with Recording(file, real_time=False) as recording:
        windows = [window for frame in recording.frames() for window in segmenter.push(frame)]
    for window in [*windows, *segmenter.flush()]:
        if isinstance(window, Window):  # the others were too short, or no speech
            mel = window_mel(window.samples, bundle.n_mels, bundle.frames)
            states = encoder.encode(mel)  # or yours: (bundle.positions, bundle.d_model) float32
            decoded = decoder.decode(states, window.duration_s)
            print(tokenizer.detokenize(decoded.tokens).strip())


if len(sys.argv) not in (2, 3):
    sys.exit(__doc__)
try:
    write_texts(*sys.argv[1:])
except RoomscribeError as error:
    sys.exit(f"decode.py: {error}")
