"""Make a model bundle from a Whisper checkpoint: download, read, write graphs, install."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance import lazily

if TYPE_CHECKING:
    from appliance.convert.add import (
        AUTO as AUTO,
        AddRequest as AddRequest,
        compiled_window_of as compiled_window_of,
        make_bundle as make_bundle,
    )
    from appliance.convert.build import (
        Recipe as Recipe,
        build_bundle as build_bundle,
        window_positions as window_positions,
    )
    from appliance.convert.checkpoint import (
        Checkpoint as Checkpoint,
        load_checkpoint as load_checkpoint,
        read_sizes as read_sizes,
        require_checkpoint as require_checkpoint,
    )
    from appliance.convert.decoding import read_vocabulary as read_vocabulary
    from appliance.convert.download import (
        Downloader as Downloader,
        UnreachableError as UnreachableError,
    )
    from appliance.convert.graph import (
        LAYER_NORM_EPSILON as LAYER_NORM_EPSILON,
        Dimensions as Dimensions,
        Graph as Graph,
        RuntimeGraph as RuntimeGraph,
        to_int8 as to_int8,
    )
    from appliance.convert.progress import ProgressDisplay as ProgressDisplay
    from appliance.convert.shapes import (
        ADDED_FILE as ADDED_FILE,
        CONFIG_FILE as CONFIG_FILE,
        DECODER as DECODER,
        EMBEDDING as EMBEDDING,
        ENCODER as ENCODER,
        GENERATION_FILE as GENERATION_FILE,
        SOUND_POSITIONS as SOUND_POSITIONS,
        VOCAB_FILE as VOCAB_FILE,
        WEIGHTS_FILE as WEIGHTS_FILE,
        WhisperConfig as WhisperConfig,
        expected_shapes as expected_shapes,
    )
    from appliance.convert.sources import (
        SOURCES as SOURCES,
        Search as Search,
        can_download as can_download,
        find_token as find_token,
        obtain as obtain,
    )
    from appliance.convert.tensors import Weights as Weights

__getattr__ = lazily(__name__, __file__)
