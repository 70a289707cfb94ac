"""`roomscribe model ...`: what these commands are called and what they take."""

from __future__ import annotations

import argparse
from pathlib import Path

from appliance import export_commands, model_commands

EPILOG = """\
examples:
  roomscribe model add tiny                       fetch, build, verify and use it
  roomscribe model add base.en --window 5         English-only, as Hailo publishes base
  roomscribe model add ./my-fine-tune --name mine a folder with a checkpoint of yours
  roomscribe model list                           what is installed; * is in use
"""

Names = argparse._SubParsersAction


def add_model(names: Names[argparse.ArgumentParser], common: argparse.ArgumentParser) -> None:
    """Adds `model` and the commands below it."""
    top = names.add_parser(
        "model",
        help="fetch, build, list, verify and choose models",
        description="Makes Whisper checkpoints into models that the appliance runs.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    below = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_add(below, common)
    _add_fetch(below, common)
    _add_reading(below, common)
    for name, command, help_text in (
        ("remove", model_commands.remove, "delete an installed model"),
        ("use", model_commands.use, "choose the model that the appliance runs"),
    ):
        sub = below.add_parser(name, parents=[common], help=help_text)
        sub.add_argument("name", metavar="NAME")
        sub.set_defaults(command=command)
    _add_export(below, common)
    _add_pack(below, common)


def _add_add(names: Names[argparse.ArgumentParser], common: argparse.ArgumentParser) -> None:
    sub = names.add_parser(
        "add",
        parents=[common],
        help="fetch a checkpoint, build a model of it and verify it",
        description="Fetches a Whisper checkpoint (or takes a folder), writes its graphs, verifies "
        "them by decoding and installs the model, whole or not at all. It is in use from then on "
        "if nobody has chosen a model before. Interrupted, it goes on where it was.",
    )
    sub.add_argument(
        "source",
        metavar="NAME|HUB_ID|FOLDER",
        help="tiny, tiny.en, base, base.en, small, small.en; a repository such as "
        "openai/whisper-tiny; or a folder with a checkpoint (./tiny for one named like a model)",
    )
    sub.add_argument("--name", help="what the model is to be called (default: from its source)")
    sub.add_argument(
        "--window",
        type=float,
        metavar="SECONDS",
        help="length of a window, up to 30 (default 10; 5 for base, as Hailo publishes it)",
    )
    sub.add_argument(
        "--quantize",
        choices=("int8", "none"),
        default="int8",
        help="int8 (default): a quarter of the size and faster; none: 32-bit floating point",
    )
    sub.add_argument(
        "--hef",
        default="auto",
        metavar="auto|none|CHIP|FILE",
        help="the encoder for a Hailo: auto (default) fetches Hailo's own if a chip is in this "
        "machine; hailo8, hailo8l or hailo10h fetches that chip's; FILE takes one of yours",
    )
    sub.add_argument(
        "--npu-decoder",
        action="store_true",
        help="with --hef CHIP: fetch Hailo's decoder as well, for [decoder] backend = hailo; "
        "for comparison only, it is about ten times slower than the CPU's",
    )
    sub.add_argument("--revision", default="main", help="branch, tag or commit (default main)")
    sub.add_argument("--language", default="en", help="language of the prompt (default en)")
    sub.add_argument("--no-use", action="store_true", help="install it, but do not choose it")
    sub.set_defaults(command=model_commands.add)


def _add_fetch(names: Names[argparse.ArgumentParser], common: argparse.ArgumentParser) -> None:
    sub = names.add_parser(
        "fetch",
        parents=[common],
        help="only fetch a checkpoint, for export, pack or add",
        description="Fetches a checkpoint into a folder, verified; interrupted, it goes on.",
    )
    sub.add_argument("source", metavar="NAME|HUB_ID")
    sub.add_argument("folder", type=Path, metavar="FOLDER")
    sub.add_argument("--revision", default="main", help="branch, tag or commit (default main)")
    sub.set_defaults(command=model_commands.fetch)


def _add_reading(names: Names[argparse.ArgumentParser], common: argparse.ArgumentParser) -> None:
    sub = names.add_parser("list", parents=[common], help="list the installed models")
    sub.add_argument("--json", action="store_true", help="one JSON object a model")
    sub.set_defaults(command=model_commands.list_models)
    sub = names.add_parser("info", parents=[common], help="everything about one model")
    sub.add_argument("name", metavar="NAME|FOLDER", nargs="?", help="default: the one in use")
    sub.add_argument("--json", action="store_true")
    sub.set_defaults(command=model_commands.info)
    sub = names.add_parser(
        "verify",
        parents=[common],
        help="check models: every file's checksum, and a decode",
    )
    sub.add_argument("names", metavar="NAME|FOLDER", nargs="*", help="default: all of them")
    sub.set_defaults(command=model_commands.verify)


def _add_export(names: Names[argparse.ArgumentParser], common: argparse.ArgumentParser) -> None:
    sub = names.add_parser(
        "export",
        parents=[common],
        help="write what Hailo's compiler needs to make a HEF",
        description="Writes the graphs in the form that Hailo's Dataflow Compiler takes, a "
        "calibration set made from recordings, and the command lines to run on an x86 machine.",
    )
    sub.add_argument("folder", type=Path, metavar="FOLDER", help="a checkpoint's folder")
    sub.add_argument("--for", dest="target", choices=("hailo",), required=True)
    sub.add_argument("--out", type=Path, metavar="FOLDER", help="default: NAME-for-hailo")
    sub.add_argument("--window", type=float, metavar="SECONDS", help="as for add")
    sub.add_argument(
        "--recordings",
        nargs="+",
        default=[],
        metavar="FILE",
        help="sound files for the calibration set; folders are searched",
    )
    sub.add_argument(
        "--opset",
        type=int,
        choices=range(13, 18),
        default=13,
        metavar="13...17",
        help="ONNX operator set (default 13)",
    )
    sub.add_argument(
        "--length",
        type=int,
        metavar="TOKENS",
        help="of the decoder's fixed sequence (default 32; 24 for base)",
    )
    sub.set_defaults(command=export_commands.export)


def _add_pack(names: Names[argparse.ArgumentParser], common: argparse.ArgumentParser) -> None:
    sub = names.add_parser(
        "pack",
        parents=[common],
        help="write the encoder's weights as blobs for NPU kernels",
        description="Writes the encoder's weights, a blob a layer with a JSON index, for kernels "
        "that load weights themselves, and reports what the number format costs.",
    )
    sub.add_argument("folder", type=Path, metavar="FOLDER", help="a checkpoint's folder")
    sub.add_argument("--dtype", choices=("bf16", "fp16", "int8"), default="bf16")
    sub.add_argument("--out", type=Path, metavar="FOLDER", help="default: NAME-DTYPE")
    sub.add_argument("--json", action="store_true")
    sub.set_defaults(command=export_commands.pack)
