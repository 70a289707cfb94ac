"""flite through its library: text in, samples and phone times out (cst_wave.h, cst_hrg.h)."""

import ctypes as c
import random
from typing import Any

import numpy as np
from train.engines import Take, load_library
from train.phones import Segment, from_arpabet


class _FliteVoice(c.Structure):
    _fields_ = (("name", c.c_char_p), ("features", c.c_void_p))


class _FliteWave(c.Structure):
    _fields_ = (
        ("type", c.c_char_p),
        ("sample_rate", c.c_int),
        ("num_samples", c.c_int),
        ("num_channels", c.c_int),
        ("samples", c.POINTER(c.c_short)),
    )


FLITE_PITCH_HZ = {"slt": 180, "rms": 105, "awb": 130, "kal16": 105}


class Flite:
    """flite; voices slt, rms, awb, kal16."""

    def __init__(self) -> None:
        self._lib = load_library("flite", "libflite.so.1")
        self._lib.flite_init()
        for call, result, arguments in (
            ("flite_synth_text", c.c_void_p, (c.c_char_p, c.c_void_p)),
            ("utt_wave", c.POINTER(_FliteWave), (c.c_void_p,)),
            ("utt_relation", c.c_void_p, (c.c_void_p, c.c_char_p)),
            ("relation_head", c.c_void_p, (c.c_void_p,)),
            ("item_next", c.c_void_p, (c.c_void_p,)),
            ("item_feat_string", c.c_char_p, (c.c_void_p, c.c_char_p)),
            ("item_feat_float", c.c_float, (c.c_void_p, c.c_char_p)),
            ("feat_set_float", None, (c.c_void_p, c.c_char_p, c.c_float)),
            ("delete_utterance", None, (c.c_void_p,)),
        ):
            function = getattr(self._lib, call)
            function.restype, function.argtypes = result, arguments
        self._voices: dict[str, Any] = {}

    def _voice(self, name: str) -> Any:
        if name not in self._voices:
            register = getattr(
                load_library("flite", f"libflite_cmu_us_{name}.so.1"), f"register_cmu_us_{name}"
            )
            register.restype, register.argtypes = c.POINTER(_FliteVoice), (c.c_char_p,)
            self._voices[name] = register(None)
        return self._voices[name]

    def say(self, name: str, text: str, stretch: float, rng: random.Random) -> Take:
        """Give one take with drawn pitch."""
        lib, voice = self._lib, self._voice(name)
        features, pitch = voice.contents.features, rng.uniform(0.85, 1.25)
        lib.feat_set_float(features, b"duration_stretch", stretch)
        lib.feat_set_float(features, b"f0_shift", pitch)
        lib.feat_set_float(features, b"int_f0_target_mean", FLITE_PITCH_HZ[name] * pitch)
        utterance = lib.flite_synth_text(text.encode(), voice)
        sound = lib.utt_wave(utterance).contents
        samples = np.ctypeslib.as_array(sound.samples, (sound.num_samples,)).copy()
        rate = sound.sample_rate
        segments: list[Segment] = []
        item, start = lib.relation_head(lib.utt_relation(utterance, b"Segment")), 0.0
        while item:
            end = float(lib.item_feat_float(item, b"end"))
            phone = from_arpabet(lib.item_feat_string(item, b"name").decode())
            segments.append(Segment(phone, start, end))
            item, start = lib.item_next(item), end
        lib.delete_utterance(utterance)
        return Take(samples, rate, segments)
