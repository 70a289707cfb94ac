"""`roomscribe model`: download, build, list, fit, choose and export models.

Each command imports the heavy packages that it needs.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from appliance.cli import model_fit
from appliance.cli.commands import COMMANDS, Commands, Run
from appliance.config import EncoderSettings, ModelSettings, Settings
from appliance.errors import ConfigError, RoomscribeError
from appliance.system import acting_as_owner

if TYPE_CHECKING:
    from appliance.convert import AddRequest, ProgressDisplay
    from appliance.model import library

EPILOG = """\
examples:
  roomscribe model add tiny                       fetch, build, verify and use it
  roomscribe model add ./my-fine-tune --name mine a folder with a checkpoint of yours
  roomscribe model list                           what is installed; * is in use
"""

VERIFYING = "verifying it with a test decode"


def add_model(commands: Commands) -> None:
    """Add `roomscribe model` and its subcommands to the command line."""
    models = commands.group(
        "model",
        COMMANDS,
        help="add, list and choose models",
        description="Builds models for this appliance from Whisper checkpoints, and manages them.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_add(models)
    models.add(
        "list",
        partial(_in_models, list_models),
        help="list the installed models, and check each file",
    )
    for name, command, help_text in (
        ("remove", remove, "delete a model or an unfinished download"),
        ("use", use, "choose the model to run"),
    ):
        sub = models.add(name, partial(_in_models, command), help=help_text)
        sub.add_argument("name", metavar="NAME")
    models.add(
        "serve",
        partial(_in_models, serve),
        help="add a model for the page (run by systemd)",
        description="Reads the name of a model, one of those that setup offers, from the first "
        "line of standard input, adds it and reports progress in JSON lines on standard output. "
        "Stops when standard input ends. systemd runs this when you add a model on the page.",
    )
    model_fit.add_fit(models, fit)
    _add_export(models)
    _add_pack(models)


def _add_add(models: Commands) -> None:
    sub = models.add(
        "add",
        partial(_in_models, add),
        help="download a checkpoint and build a model from it",
        description="Downloads a Whisper checkpoint (or reads a folder), builds a model from it, "
        "verifies it with a test decode and installs it completely or not at all. It is used from "
        "then on unless you have already chosen another model. If it is interrupted, run the same "
        "command again: the download continues.",
    )
    sub.add_argument(
        "source",
        metavar="NAME|HUB_ID|FOLDER",
        help="tiny, tiny.en, base, base.en, small, small.en; a repository on the hub such as "
        "openai/whisper-tiny; or a folder with a checkpoint (write ./tiny for a folder named tiny)",
    )
    sub.add_argument("--name", help="name of the model (default: from its source)")
    sub.add_argument(
        "--window",
        type=float,
        metavar="SECONDS",
        help="length of a window, up to 30 (default: 10, or the window of Hailo's encoder)",
    )
    sub.add_argument(
        "--quantize",
        choices=("int8", "none"),
        default="int8",
        help="int8 (default): a quarter of the size, and faster; none: 32-bit floating point",
    )
    sub.add_argument(
        "--hef",
        default="auto",
        metavar="auto|none|CHIP|FILE",
        help="encoder for a Hailo: auto (default) downloads Hailo's encoder if this machine has a "
        "chip and no more words are wrong with it; hailo8, hailo8l or hailo10h downloads the one "
        "for that chip; FILE uses your own",
    )
    sub.add_argument(
        "--language", default="", help="language of the speech, as a code or an English name "
        "(default: the checkpoint's, else en)",
    )  # fmt: skip
    sub.add_argument("--no-use", action="store_true", help="do not choose it")


def _add_export(models: Commands) -> None:
    sub = models.add(
        "export",
        export,
        help="write the input of Hailo's compiler",
        description="Writes the graphs for Hailo's Dataflow Compiler, calibration sets from "
        "recordings, and the commands to run on an x86 machine.",
    )
    sub.add_argument("folder", type=Path, metavar="FOLDER", help="a checkpoint's folder")
    sub.add_argument("--out", type=Path, metavar="FOLDER", help="default: NAME-for-hailo")
    sub.add_argument("--window", type=float, metavar="SECONDS", help="default: 10; base: 5")
    sub.add_argument(
        "--recordings",
        nargs="+",
        default=[],
        metavar="FILE",
        help="sound files for the calibration sets, or folders with some",
    )
    sub.add_argument("--language", default="", help="language of the recordings; as for add")


def _add_pack(models: Commands) -> None:
    sub = models.add(
        "pack",
        pack,
        help="write the encoder's weights as blobs for NPU kernels",
        description="Writes the encoder's weights, a blob a layer with a JSON index, for kernels "
        "that load weights themselves, and reports what the number format costs.",
    )
    sub.add_argument("folder", type=Path, metavar="FOLDER", help="a checkpoint's folder")
    sub.add_argument("--dtype", choices=("bf16", "fp16", "int8"), default="bf16")
    sub.add_argument("--out", type=Path, metavar="FOLDER", help="default: NAME-DTYPE")


def _in_models(command: Run, options: argparse.Namespace, settings: Settings) -> int:
    """Run a command that works on the models folder."""
    with changing_models():
        return command(options, settings)


@contextmanager
def changing_models() -> Iterator[None]:
    """Let the block change the models folder; first delete what killed commands left there.

    Root acts as the folder's owner: what it installs belongs to the owner, and it follows no link
    that the owner could not follow.
    """
    from appliance.model import library, models_folder

    with acting_as_owner(models_folder()):
        library.clear_abandoned()
        yield


def add(options: argparse.Namespace, settings: Settings) -> int:
    """Run `roomscribe model add`."""
    from appliance.convert import AUTO, AddRequest
    from appliance.infer import find_chip

    request = AddRequest(
        source=options.source,
        name=options.name or "",
        window_s=options.window,
        quantize=options.quantize,
        language=options.language,
        hef=options.hef,
        chip_present=find_chip() if options.hef == AUTO else None,
    )
    _build_with_bar(request)
    _choose_new(request.bundle_name, options, settings)
    return 0


def choose_model(name: str) -> None:
    """Choose an installed model, as `model use` does. Raises ModelError."""
    from appliance.model import library

    with changing_models():
        library.choose(name)


def add_source(source: str, hef: str = "") -> str:
    """Add a model with the defaults of `model add`, but do not use it; return its name.

    `hef`: the user's own encoder for the Hailo; the built-in model gets another name with it.
    Raises RoomscribeError.
    """
    from appliance.convert import AUTO, AddRequest
    from appliance.infer import find_chip
    from appliance.model import BUILT_IN

    name = f"{BUILT_IN}-hailo" if hef and source == BUILT_IN else ""
    request = AddRequest(source, name, hef=hef or AUTO, chip_present=None if hef else find_chip())
    with changing_models():
        _build_with_bar(request)
    return request.bundle_name


def _build_with_bar(request: AddRequest) -> None:
    """Build a model, with one bar for all its steps on a terminal; remarks come above it."""
    from appliance.convert import StreamProgress

    progress = StreamProgress()
    try:
        build_model(request, lambda line: progress.note(line, sys.stdout), progress)
    finally:
        progress.close()


def build_model(
    request: AddRequest, say: Callable[[str], object], progress: ProgressDisplay
) -> None:
    """Download, build, verify and install a model. Raises RoomscribeError."""
    from appliance.convert import make_bundle
    from appliance.model import install, library, work_on

    begun = time.monotonic()
    with work_on(request.bundle_name) as staging:
        try:
            make_bundle(request, staging, progress=progress, say=say)
            progress.begin(VERIFYING)
            load_s = _verify(staging.draft)
            size = library.folder_bytes(staging.draft)
            install(staging)
        except BaseException:
            _report_kept(staging, say)
            raise
    say(
        f"{request.bundle_name}: installed {size / 1e6:.1f} MB in {staging.bundle} after "
        f"{time.monotonic() - begun:.1f} s (peak memory {_peak_mb():.0f} MB), "
        f"verified with a test decode; loads in {load_s:.2f} s"
    )


def serve(_options: argparse.Namespace, _settings: Settings) -> int:
    """Run `roomscribe model serve`."""
    from appliance.cli.model_serve import serve  # requests and tqdm, which a satellite lacks

    return serve(build_model)


def fit(options: argparse.Namespace, settings: Settings) -> int:
    """Run `roomscribe model fit`."""
    return model_fit.fit(options, settings, model_in_use(settings))


def _report_kept(staging: library.StagingFolder, say: Callable[[str], object]) -> None:
    """Report the part of a download that is kept. The terminal may be gone."""
    from appliance.model import library

    if size := library.downloaded_bytes(staging):
        with suppress(OSError):
            say(
                f"{staging.name}: {size / 1e6:.1f} MB were downloaded and are kept. Run the same "
                f"command again to continue, or `roomscribe model remove {staging.name}` to delete "
                "them."
            )


def list_models(_options: argparse.Namespace, settings: Settings) -> int:
    """Run `roomscribe model list`; return the status of the last damaged model.

    The checksum of every file is verified.
    """
    from appliance.model import installed_bundles, library, load_bundle

    status = 0
    for name, folder in installed_bundles().items():
        in_use = model_in_use(settings) in (name, str(folder))
        try:
            bundle = load_bundle(folder)
        except RoomscribeError as error:
            print(f"roomscribe: {error}", file=sys.stderr)
            status = error.exit_status
            continue
        known = bundle.languages
        languages = " ".join(known) if len(known) < 4 else f"{len(known)} languages"
        print(
            f"{'*' if in_use else ' '} {name:16} {library.folder_bytes(folder) / 1e6:7.1f} MB  "
            f"{bundle.window_s:4g} s  {languages:>12}  {bundle.title}, "
            f"{bundle.source or folder}"
        )
    for name, begun in library.unfinished().items():
        what = (
            f"being added or removed by process {begun.process}"
            if begun.process
            else "unfinished download: `model add` continues it, `model remove` deletes it"
        )
        print(f"  {name:16} {begun.size / 1e6:7.1f} MB  {what}")
    return status


def remove(options: argparse.Namespace, settings: Settings) -> int:
    """Run `roomscribe model remove`."""
    from appliance.model import BUILT_IN, library

    if options.name == BUILT_IN or not library.NAME.fullmatch(options.name):
        which = "the built-in model" if options.name == BUILT_IN else repr(options.name)
        raise ConfigError(
            f"model remove: {which} cannot be removed. You can remove: "
            f"{', '.join(library.installed()) or '(no model is installed)'}"
        )
    if options.name == model_in_use(settings):
        if library.drop_download(options.name):
            print(f"{options.name}: deleted the unfinished download; the model stays in use")
            return 0
        raise ConfigError(
            f"model {options.name!r} is in use; first choose another one: "
            + (
                "[model] bundle in the configuration"
                if settings.model.bundle
                else f"roomscribe model use {BUILT_IN}"
            )
        )
    library.remove(options.name)
    return 0


def use(options: argparse.Namespace, settings: Settings) -> int:
    """Run `roomscribe model use`."""
    from appliance.model import library, load_bundle

    load_bundle(options.name)
    if "/" in options.name:
        raise ConfigError(
            f"model use: {options.name!r} is not the name of an installed model. To use a folder, "
            "set [model] bundle in the configuration."
        )
    if settings.model.bundle not in ("", options.name):
        raise ConfigError(
            f"the configuration sets [model] bundle = {settings.model.bundle!r}, which overrides "
            f"`model use`; change it to {options.name!r}, or remove that line"
        )
    library.choose(options.name)
    print(f"{options.name} is chosen. {RELOAD}")
    return 0


def export(options: argparse.Namespace, _settings: Settings) -> int:
    """Run `roomscribe model export`."""
    from appliance.convert import compiled_window_of, read_sizes, require_checkpoint
    from appliance.lab import export_for_hailo, recorded_mels

    require_checkpoint(options.folder)
    config = read_sizes(options.folder)
    window_s = compiled_window_of(config) if options.window is None else options.window
    report = export_for_hailo(
        options.folder,
        options.out or Path(f"{options.folder.resolve().name}-for-hailo"),
        window_s=window_s,
        mels=recorded_mels(options.recordings, window_s, config.num_mel_bins),
        language=options.language,
    )
    print(report)
    return 0


def pack(options: argparse.Namespace, _settings: Settings) -> int:
    """Run `roomscribe model pack`."""
    from appliance.convert import load_checkpoint
    from appliance.lab import write_pack

    out = options.out or Path(f"{options.folder.resolve().name}-{options.dtype}")
    report = write_pack(load_checkpoint(options.folder), out, options.dtype)
    worst = max(report["tensors"], key=lambda tensor: tensor["relative_rms_error"])
    print(
        f"{out}: {report['size']} bytes; largest relative error (RMS) of a weight: "
        f"{worst['relative_rms_error']:.2g} ({worst['name']})"
    )
    return 0


RESTART = "The daemon uses it after `sudo systemctl restart roomscribe`."
RELOAD = RESTART.replace("restart", "reload")


def model_in_use(settings: Settings) -> str:
    """Return the name or folder of the model that the daemon would run."""
    from appliance.model import BUILT_IN, chosen_model

    return settings.model.bundle or chosen_model() or BUILT_IN


def _choose_new(name: str, options: argparse.Namespace, settings: Settings) -> None:
    """Choose the new model if the user has not chosen one, or say how to."""
    from appliance.model import BUILT_IN, choose, chosen_model

    if model_in_use(settings) == name:
        print(f"It is in use. {RESTART}")
    elif options.no_use or settings.model.bundle or chosen_model():
        print(f"{model_in_use(settings)} stays in use. To change: `roomscribe model use {name}`")
    else:
        choose(name)
        print(f"It is chosen instead of {BUILT_IN}. {RELOAD}")


def _verify(name: str | Path) -> float:
    """Verify a bundle's files, load it and decode with it; return the seconds to load it.

    Raises ModelError.
    """
    from appliance.infer import open_transcriber

    model, encoder = ModelSettings(bundle=str(name)), EncoderSettings(backend="cpu")
    begun = time.perf_counter()
    with open_transcriber(replace(Settings(), model=model, encoder=encoder)) as transcriber:
        load_s = time.perf_counter() - begun
        transcriber.warm_up()
    return load_s


def _peak_mb() -> float:
    """Return the largest resident size of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
