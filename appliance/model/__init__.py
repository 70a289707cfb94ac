"""What a running appliance reads of a model: bundles, and the folder of installed models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from appliance import lazily

if TYPE_CHECKING:
    from appliance.model import library
    from appliance.model.bundle import (
        BUILT_IN,
        CHIP_NAMES,
        CROSS_FILE,
        DEFAULT_CALIBRATION,
        EMBEDDING_FILE,
        ENCODER_FILE,
        FRAMES_PER_POSITION,
        HEF_FILE,
        HEF_MAGIC,
        LONGEST_WINDOW_S,
        MANIFEST,
        POSITIONS_PER_SECOND,
        QUANTIZE,
        SCREENED_FILE,
        SILENCE_FILE,
        SILENT_MEL,
        STEP_FILE,
        VOCABULARY_FILE,
        WINDOW_S,
        Bundle,
        Calibration,
        Tokens,
        chosen_model,
        enter_files,
        find_bundle,
        identify,
        installed_bundles,
        is_packaged,
        load_bundle,
        models_folder,
        write_json,
        write_manifest,
    )
    from appliance.model.files import (
        JSON_LIMIT,
        read_bounded,
        read_json,
        require_regular,
        sha256,
        unreadable,
    )
    from appliance.model.library import (
        StagingFolder,
        choose,
        drafted,
        install,
        model_errors,
        work_on,
    )

__getattr__ = lazily(__name__, __file__)
