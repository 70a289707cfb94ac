"""Windows to transcriptions: mel, encoder, decoder, and what is let through."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance import lazily

if TYPE_CHECKING:
    from appliance.infer.arithmetic import (
        LARGEST_ERROR as LARGEST_ERROR,
        Products as Products,
        find_trouble as find_trouble,
    )
    from appliance.infer.completeness import silence_ms as silence_ms
    from appliance.infer.decoder import (
        Decoded as Decoded,
        Decoder as Decoder,
    )
    from appliance.infer.encoder import (
        Backend as Backend,
        CpuEncoder as CpuEncoder,
        Encoder as Encoder,
    )
    from appliance.infer.gates import (
        Gates as Gates,
        compression_ratio as compression_ratio,
        is_loop as is_loop,
        judge as judge,
    )
    from appliance.infer.hailo import device as device, errors as errors
    from appliance.infer.hailo.decoder import (
        HailoDecoder as HailoDecoder,
        open_on_npu as open_on_npu,
    )
    from appliance.infer.hailo.decoder_network import DecoderFiles as DecoderFiles
    from appliance.infer.hailo.device import find_chip as find_chip
    from appliance.infer.hailo.errors import NpuError as NpuError
    from appliance.infer.hailo.npu import open_npu as open_npu
    from appliance.infer.joining import is_unspaced as is_unspaced
    from appliance.infer.languages import choose_languages as choose_languages
    from appliance.infer.mel import log_mel as log_mel, window_mel as window_mel
    from appliance.infer.numbers import in_words as in_words
    from appliance.infer.opening import (
        check_files as check_files,
        fill_gates as fill_gates,
        open_encoder as open_encoder,
        open_transcriber as open_transcriber,
        phrases_file as phrases_file,
    )
    from appliance.infer.phrases import Phrases as Phrases
    from appliance.infer.remote import (
        RemoteBackend as RemoteBackend,
        RemoteModel as RemoteModel,
        RemoteTranscriber as RemoteTranscriber,
        UnwantedError as UnwantedError,
        clean_text as clean_text,
        is_language as is_language,
        join_transcriptions as join_transcriptions,
        longest_text as longest_text,
    )
    from appliance.infer.runtime import (
        lacking_model as lacking_model,
        lacking_runtime as lacking_runtime,
        transcribed_elsewhere as transcribed_elsewhere,
    )
    from appliance.infer.sentences import parse_phrases as parse_phrases
    from appliance.infer.sessions import Session as Session, onnxruntime as onnxruntime
    from appliance.infer.tokenizer import Tokenizer as Tokenizer
    from appliance.infer.transcriber import (
        IGNORE_PROGRESS as IGNORE_PROGRESS,
        AnyDecoder as AnyDecoder,
        AnyTranscriber as AnyTranscriber,
        Encoded as Encoded,
        Model as Model,
        Progress as Progress,
        Transcriber as Transcriber,
        TranscriberParts as TranscriberParts,
    )

__getattr__ = lazily(__name__, __file__)
