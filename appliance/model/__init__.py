"""The files that make a model: bundles, HEFs, checkpoints, and how one becomes the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance import lazily

if TYPE_CHECKING:
    from appliance.model import library as library
    from appliance.model.add import (
        AUTO as AUTO,
        AddRequest as AddRequest,
        make_bundle as make_bundle,
        window_of as window_of,
    )
    from appliance.model.build import (
        Recipe as Recipe,
        build_bundle as build_bundle,
        window_positions as window_positions,
    )
    from appliance.model.bundle import (
        BEST as BEST,
        BUILT_IN as BUILT_IN,
        CROSS_FILE as CROSS_FILE,
        DECODER_FILES as DECODER_FILES,
        DECODER_HEF as DECODER_HEF,
        EMBEDDING_FILE as EMBEDDING_FILE,
        ENCODER_FILE as ENCODER_FILE,
        FRAMES_PER_POSITION as FRAMES_PER_POSITION,
        HEF_FILE as HEF_FILE,
        JOINT as JOINT,
        JOINT_FILE as JOINT_FILE,
        LAYERS_FILE as LAYERS_FILE,
        PHRASES_FILE as PHRASES_FILE,
        PLACE_TABLE as PLACE_TABLE,
        STEP_FILE as STEP_FILE,
        TOKEN_TABLE as TOKEN_TABLE,
        VOCABULARY_FILE as VOCABULARY_FILE,
        WORDS_FILE as WORDS_FILE,
        Bundle as Bundle,
        Endings as Endings,
        Guards as Guards,
        Vtln as Vtln,
        chosen_model as chosen_model,
        identify as identify,
        installed_bundles as installed_bundles,
        load_bundle as load_bundle,
        write_json as write_json,
    )
    from appliance.model.checkpoint import (
        Checkpoint as Checkpoint,
        load_checkpoint as load_checkpoint,
        require_checkpoint as require_checkpoint,
    )
    from appliance.model.download import Progress as Progress
    from appliance.model.graph import (
        LAYER_NORM_EPSILON as LAYER_NORM_EPSILON,
        Dimensions as Dimensions,
        Graph as Graph,
        to_int8 as to_int8,
    )
    from appliance.model.hef import (
        CHIP_NAMES as CHIP_NAMES,
        Hef as Hef,
        bundled_hef as bundled_hef,
        read_hef as read_hef,
        verify_hef as verify_hef,
    )
    from appliance.model.huggingface import fetch_checkpoint as fetch_checkpoint
    from appliance.model.library import (
        choose as choose,
        drafted as drafted,
        install as install,
        work_on as work_on,
    )
    from appliance.model.shapes import (
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
        read_config as read_config,
    )
    from appliance.model.tensors import Weights as Weights, read_json as read_json
    from appliance.model.vocabulary import read_vocabulary as read_vocabulary

__getattr__ = lazily(__name__, __file__)
