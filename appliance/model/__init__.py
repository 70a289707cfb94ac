"""What a running appliance reads of a model: bundles, HEF files, installed models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance import lazily

if TYPE_CHECKING:
    from appliance.model import library as library, protobuf as protobuf
    from appliance.model.bundle import (
        BUILT_IN as BUILT_IN,
        CROSS_FILE as CROSS_FILE,
        DECODER_FILES as DECODER_FILES,
        DECODER_HEF as DECODER_HEF,
        DEFAULT_CALIBRATION as DEFAULT_CALIBRATION,
        EMBEDDING_FILE as EMBEDDING_FILE,
        ENCODER_FILE as ENCODER_FILE,
        FRAMES_PER_POSITION as FRAMES_PER_POSITION,
        HEF_FILE as HEF_FILE,
        LEADS as LEADS,
        LONGEST_WINDOW_S as LONGEST_WINDOW_S,
        MANIFEST as MANIFEST,
        PLACE_TABLE as PLACE_TABLE,
        POSITIONS_PER_SECOND as POSITIONS_PER_SECOND,
        QUANTIZE as QUANTIZE,
        SILENCE_FILE as SILENCE_FILE,
        SILENT_MEL as SILENT_MEL,
        STEP_FILE as STEP_FILE,
        TOKEN_TABLE as TOKEN_TABLE,
        VOCABULARY_FILE as VOCABULARY_FILE,
        WINDOW_S as WINDOW_S,
        Bundle as Bundle,
        Calibration as Calibration,
        PhraseCalibration as PhraseCalibration,
        Tokens as Tokens,
        chosen_model as chosen_model,
        enter_files as enter_files,
        find_bundle as find_bundle,
        identify as identify,
        installed_bundles as installed_bundles,
        is_packaged as is_packaged,
        load_bundle as load_bundle,
        log_odds as log_odds,
        models_folder as models_folder,
        write_json as write_json,
        write_manifest as write_manifest,
    )
    from appliance.model.files import (
        JSON_LIMIT as JSON_LIMIT,
        read_bounded as read_bounded,
        read_json as read_json,
        require_regular as require_regular,
        sha256 as sha256,
        unreadable as unreadable,
    )
    from appliance.model.hef import (
        CHIP_NAMES as CHIP_NAMES,
        MAGIC as MAGIC,
        Hef as Hef,
        bundled_hef as bundled_hef,
        read_hef as read_hef,
        verify_hef as verify_hef,
    )
    from appliance.model.letters import byte_of_letter as byte_of_letter
    from appliance.model.library import (
        StagingFolder as StagingFolder,
        choose as choose,
        drafted as drafted,
        install as install,
        model_errors as model_errors,
        work_on as work_on,
    )

__getattr__ = lazily(__name__, __file__)
