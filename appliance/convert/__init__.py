"""Make a model bundle from a Whisper checkpoint: download, read, write graphs, install."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance import lazily

if TYPE_CHECKING:
    from appliance.convert.add import AUTO, AddRequest, compiled_window_of, make_bundle
    from appliance.convert.build import Recipe, build_bundle, window_positions
    from appliance.convert.checkpoint import (
        Checkpoint,
        load_checkpoint,
        read_sizes,
        require_checkpoint,
    )
    from appliance.convert.download import UnreachableError
    from appliance.convert.graph import LAYER_NORM_EPSILON, Dimensions, Graph, RuntimeGraph, to_int8
    from appliance.convert.hailo_store import find_hef
    from appliance.convert.known import WRONG_WORDS
    from appliance.convert.progress import ProgressDisplay, StreamProgress
    from appliance.convert.shapes import (
        DECODER,
        EMBEDDING,
        ENCODER,
        SOUND_POSITIONS,
        WhisperConfig,
        expected_shapes,
    )
    from appliance.convert.tensors import Weights

__getattr__ = lazily(__name__, __file__)
