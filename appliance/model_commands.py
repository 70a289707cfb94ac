"""What the `roomscribe model` commands do, behind the command line of `appliance.model_cli`.

Heavy rooms are imported by the command that needs them.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from appliance.config import EncoderSettings, ModelSettings, Settings
from appliance.errors import ConfigError, RoomscribeError
from appliance.infer.transcriber import Transcriber
from appliance.model.bundle import BUILT_IN, Bundle, chosen_model

if TYPE_CHECKING:
    from appliance.infer.transcriber import Transcriber
    from appliance.model.bundle import Bundle


def add(options: argparse.Namespace, settings: Settings) -> int:
    """`roomscribe model add`"""
    from appliance.infer.hailo.device import find_chip
    from appliance.model.add import AUTO, Order, make_bundle
    from appliance.model.library import install, work_on

    order = Order(
        source=options.source,
        revision=options.revision,
        name=options.name or "",
        window_s=options.window,
        quantize=options.quantize,
        language=options.language,
        hef=options.hef,
        chip_present=find_chip() if options.hef == AUTO else None,
        npu_decoder=options.npu_decoder,
    )
    begun = time.monotonic()
    with work_on(order.bundle_name) as place:
        for remark in make_bundle(order, place):
            _say(remark)
        load_s = _prove(place.draft)
        size = _size(place.draft)
        install(place)
    _say(
        f"{order.bundle_name}: {size / 1e6:.1f} MB in {place.bundle}, ready after "
        f"{time.monotonic() - begun:.1f} s (peak memory {_peak_mb():.0f} MB), "
        f"verified by a decode; loads in {load_s:.2f} s"
    )
    _put_to_use(order.bundle_name, options, settings)
    return 0


def fetch(options: argparse.Namespace, _settings: Settings) -> int:
    """`roomscribe model fetch`"""
    from appliance.model.huggingface import fetch_checkpoint

    options.folder.mkdir(parents=True, exist_ok=True)
    origin = fetch_checkpoint(options.source, options.revision, options.folder)
    _say(f"{options.folder}: {origin.repository} at {origin.revision}, every file verified")
    return 0


def list_models(options: argparse.Namespace, settings: Settings) -> int:
    """`roomscribe model list`; the status of the last damaged one, after showing all."""
    from appliance.model.bundle import installed_bundles, load_bundle

    status = 0
    for name, folder in installed_bundles().items():
        in_use = _in_use(settings) in (name, str(folder))
        try:
            bundle = load_bundle(folder)
        except RoomscribeError as error:
            _complain(error)
            status = error.exit_status
            continue
        shown = _facts(bundle) | {"in_use": in_use}
        if options.json:
            print(json.dumps(shown))
        else:
            print(
                f"{'*' if in_use else ' '} {name:16} {shown['size_bytes'] / 1e6:7.1f} MB  "
                f"{bundle.window_s:4g} s  {shown['languages']:>12}  {bundle.source or folder}"
            )
    return status


def info(options: argparse.Namespace, settings: Settings) -> int:
    """`roomscribe model info`"""
    from appliance.model.bundle import load_bundle

    facts = _facts(load_bundle(options.name or _in_use(settings)))
    if options.json:
        print(json.dumps(facts))
    else:
        for name, value in facts.items():
            print(f"{name.replace('_', ' '):20} {value}")
    return 0


def verify(options: argparse.Namespace, _settings: Settings) -> int:
    """`roomscribe model verify`; the status of the last failing one, after checking all."""
    from appliance.model.bundle import installed_bundles

    status = 0
    for name in options.names or [str(folder) for folder in installed_bundles().values()]:
        try:
            load_s = _prove(name)
            print(f"{name}: every file is as it was built, and it decodes; loads in {load_s:.2f} s")
        except RoomscribeError as error:
            _complain(error)
            status = error.exit_status
    return status


def remove(options: argparse.Namespace, settings: Settings) -> int:
    """`roomscribe model remove`"""
    from appliance.model import library

    if options.name == _in_use(settings):
        raise ConfigError(
            f"model {options.name!r} is in use: choose another first, "
            f"roomscribe model use {BUILT_IN}"
        )
    library.remove(options.name)
    return 0


def use(options: argparse.Namespace, settings: Settings) -> int:
    """`roomscribe model use`"""
    from appliance.model import library
    from appliance.model.bundle import load_bundle

    load_bundle(options.name)
    if "/" in options.name:
        raise ConfigError(
            f"model use: expected the name of an installed model, found {options.name!r}; "
            "a folder is named in the configuration: [model] bundle"
        )
    if settings.model.bundle not in ("", options.name):
        raise ConfigError(
            f"[model] bundle: the configuration names {settings.model.bundle!r}, which goes before "
            f"any choice; change it to {options.name!r} there, or remove that line"
        )
    library.choose(options.name)
    _say(f"{options.name} is in use from the daemon's next start: systemctl restart roomscribe")
    return 0


def _in_use(settings: Settings) -> str:
    """Name or folder of the model that the daemon would run."""
    return settings.model.bundle or chosen_model() or BUILT_IN


def _put_to_use(name: str, options: argparse.Namespace, settings: Settings) -> None:
    """Chooses the new model where nobody has chosen one, or says how to."""
    from appliance.model.library import choose

    if _in_use(settings) == name:
        _say("it is in use; the daemon runs it from its next start: systemctl restart roomscribe")
    elif options.no_use or settings.model.bundle or chosen_model():
        _say(f"{_in_use(settings)} stays in use; to change: roomscribe model use {name}")
    else:
        choose(name)
        _say(f"in use in place of {BUILT_IN} from the daemon's next start: "
             "systemctl restart roomscribe")  # fmt: skip


def _prove(name: str | Path) -> float:
    """Verifies a bundle's files, loads it and decodes with it; seconds that loading took.

    Raises ModelError.
    """
    from appliance.infer.hailo.decoder_network import DECODER_HEF, DecoderFiles
    from appliance.model.hef import bundled_hef, verify_hef

    begun = time.perf_counter()
    with _open(str(name)) as transcriber:
        load_s = time.perf_counter() - begun
        transcriber.warm_up()
        if hef := bundled_hef(transcriber.bundle):
            verify_hef(hef, transcriber.bundle)
        if DECODER_HEF in transcriber.bundle.files:
            DecoderFiles(transcriber.bundle).verify()
    return load_s


def _open(name: str) -> Transcriber:
    from appliance.infer.transcriber import open_transcriber

    return open_transcriber(
        replace(
            Settings(), model=ModelSettings(bundle=name), encoder=EncoderSettings(backend="cpu")
        )
    )


def _facts(bundle: Bundle) -> dict[str, Any]:
    """What a model is, for people and programs."""
    languages = bundle.languages
    return {
        "name": bundle.name,
        "folder": str(bundle.folder),
        "description": bundle.description,
        "source": bundle.source,
        "licence": bundle.licence,
        "demo_model": bundle.demo_model,
        "checkpoint_sha256": bundle.checkpoint_sha256,
        "size_bytes": _size(bundle.folder),
        "window_s": bundle.window_s,
        "quantize": bundle.quantize,
        "languages": " ".join(languages) if len(languages) < 4 else f"{len(languages)} languages",
        "language": bundle.language,
        "d_model": bundle.d_model,
        "encoder_layers": bundle.encoder_layers,
        "decoder_layers": bundle.decoder_layers,
        "vocabulary_size": bundle.vocabulary_size,
        "files": " ".join(bundle.files),
    }


def _size(folder: Path) -> int:
    """Bytes of the files in a folder."""
    return sum(file.stat().st_size for file in folder.iterdir())


def _peak_mb() -> float:
    """Largest resident size of this process so far, MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def _say(line: str) -> None:
    print(line, flush=True)


def _complain(error: RoomscribeError) -> None:
    print(f"roomscribe: {error}", file=sys.stderr)
