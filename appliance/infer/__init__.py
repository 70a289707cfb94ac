"""Windows to transcriptions: mel, encoder, decoder, and what is let through.

What another program may use (docs/reuse.md; n samples, W mel frames, P = W / 2 positions):

- window_mel(samples (n,) int16, n_mels, W), log_mel(samples (n,) float32) -> (W, n_mels) float32
- CpuEncoder(bundle, threads).encode(mel (W, n_mels)) -> states (P, d_model) float32
- Decoder(bundle, threads).decode(states (P, d_model), seconds) -> Decoded: tokens and logprobs. The
  states may be any encoder's, as in a hybrid of NPU and CPU. `network` takes a StepNetwork.
- Network: the decoder's KV cache. begin(states, positions), then advance(token ids, wanted indices)
  -> Step: logits (w, K) of the K tokens that are not suppressed.
- Tokenizer.open(bundle).detokenize(tokens) -> text; tokenize(text) -> token ids
- Gates(settings).apply(window, transcription) -> transcription, and why it is discarded or None
- open_transcriber(settings) -> Transcriber: all of it in transcribe(window)

One object is for one thread. All raise ModelError for a model that cannot be used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance import lazily

if TYPE_CHECKING:
    from appliance.infer.completeness import silence_ms
    from appliance.infer.corrections import Corrections
    from appliance.infer.decoder import Decoded, Decoder
    from appliance.infer.encoder import Backend, CpuEncoder, Encoder
    from appliance.infer.gates import Gates, compression_ratio, is_loop, judge
    from appliance.infer.hailo import device, diagnosis
    from appliance.infer.hailo.diagnosis import NpuError
    from appliance.infer.hailo.npu import Npu, open_npu
    from appliance.infer.hailo.process_owner import find_chip
    from appliance.infer.mel import log_mel, window_mel
    from appliance.infer.network import Network, Step, StepNetwork
    from appliance.infer.numbers import in_words
    from appliance.infer.opening import (
        check_files,
        open_encoder,
        open_transcriber,
        phrases_file,
        why_on_cpu,
    )
    from appliance.infer.overlap import is_unspaced
    from appliance.infer.phrases import Phrases
    from appliance.infer.request import Deliver, Pending, Request, Submit, future_result
    from appliance.infer.runtime import (
        Model,
        RemoteModel,
        lacking_model,
        lacking_runtime,
        transcribed_elsewhere,
    )
    from appliance.infer.sentences import parse_phrases, plain
    from appliance.infer.sessions import Session
    from appliance.infer.tokenizer import Tokenizer
    from appliance.infer.transcriber import AnyTranscriber, Encoded, Transcriber
    from appliance.infer.wording import in_digits

__getattr__ = lazily(__name__, __file__)
