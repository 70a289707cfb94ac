"""How tests tell the simulated chip what it is and does.

    simulator = Simulator(tmp_path)     # nothing there yet
    simulator.plug(latency_ms=2)        # a chip, its node and its driver
    simulator.set(fail_jobs=[3])        # see _pyhailort.DEFAULTS for all that can be said
    simulator.unplug()

The settings lie in a file: other processes with the same $HAILO_SIMULATOR see the same chip.
"""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
from rigs.hailo_simulator.hef_files import write_hef, write_network

from appliance.convert.checkpoint import load_checkpoint
from appliance.lab.hailo.graphs import host_tables, vocabulary_parts, write_hailo_decoder
from appliance.model.bundle import Bundle, load_bundle

HERE = Path(__file__).resolve().parent
VARIABLES = ("HAILO_SIMULATOR", "ROOMSCRIBE_HAILO_ROOT")


class Simulator:
    """A folder that stands for the machine's chip, driver and library."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.settings: dict[str, Any] = {}
        folder.mkdir(exist_ok=True)
        self._write()

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs in its environment to see this chip."""
        return {
            "HAILO_SIMULATOR": str(self.folder),
            "ROOMSCRIBE_HAILO_ROOT": str(self.folder),
            "PYTHONPATH": str(HERE),
        }

    def enter(self) -> None:
        """Makes this process see the chip."""
        os.environ |= {name: self.environment[name] for name in VARIABLES}
        if str(HERE) not in sys.path:
            sys.path.insert(0, str(HERE))
        self.forget()

    def leave(self) -> None:
        """Undoes `enter`."""
        for name in VARIABLES:
            os.environ.pop(name, None)
        sys.path.remove(str(HERE))
        self.forget()

    @staticmethod
    def forget() -> None:
        """Lets the next import load the package afresh, as another version maybe."""
        for name in [name for name in sys.modules if name.split(".")[0] == "hailo_platform"]:
            del sys.modules[name]

    def plug(self, **settings: Any) -> None:
        """Puts a chip in."""
        self.set(**settings)
        node = self.folder / "dev/hailo0"
        node.parent.mkdir(exist_ok=True)
        node.touch()

    def unplug(self) -> None:
        """Takes it out."""
        (self.folder / "dev/hailo0").unlink()

    def set(self, **settings: Any) -> None:
        """Changes what is said, for all processes and at once."""
        self.settings |= settings
        self._write()

    @property
    def violations(self) -> list[str]:
        """What went wrong unnoticed, in any process."""
        return self._noted("violations")

    @property
    def history(self) -> list[tuple[int, float]]:
        """Of each job in any process: its status, and the seconds that the chip had it."""
        lines = (line.split() for line in self._noted("history"))
        return [(int(status), float(seconds)) for status, seconds in lines]

    def _noted(self, name: str) -> list[str]:
        file = self.folder / name
        return file.read_text().splitlines() if file.exists() else []

    def _write(self) -> None:
        draft = self.folder / "control.draft"
        draft.write_text(json.dumps(self.settings))
        draft.replace(self.folder / "control.json")
        version = self.folder / "sys/module/hailo_pci/version"
        version.parent.mkdir(parents=True, exist_ok=True)
        version.write_text(self.settings.get("driver", "4.23.0") + "\n")


def with_hef(source: Bundle, folder: Path, chip: str = "HAILO8", **hef: Any) -> Bundle:
    """A copy of a bundle in `folder`, with a HEF for the simulated chip."""
    shutil.copytree(source.folder, folder)
    shapes = (1, source.frames, source.n_mels), (1, source.positions, source.d_model)
    file = write_hef(folder / "encoder.hef", *shapes, chip, **hef)
    enlist(folder, file)
    return load_bundle(folder)


DECODER_OUTPUTS = ("decoder/conv99", "decoder/conv9", "decoder/conv102", "decoder/conv100")
"""Of the four parts of the logits: neither by letters nor by numbers in the order of the parts,
since the compiler promises neither."""


def with_decoder(bundle: Bundle, checkpoint: Path, length: int) -> Bundle:
    """The same bundle, with a decoder's HEF and its tables in its folder."""
    folder, read = bundle.folder, load_checkpoint(checkpoint)
    write_hailo_decoder(read, bundle.positions, length, folder / "hailo_decoder.onnx")
    write_decoder_hef(bundle, length)
    for name, table in zip(DECODER_TABLES, host_tables(read, length), strict=True):
        np.save(folder / name, table)
    return bundle


DECODER_TABLES = ("token_embedding_weight.npy", "onnx_add_input.npy")


def write_decoder_hef(
    bundle: Bundle, length: int, chip: str = "HAILO8", *, turned: bool = False, **hef: Any
) -> Path:
    """A HEF for the graph hailo_decoder.onnx beside it. `turned`: rows along the other axis, which
    is the same in memory. Outputs are listed in the order of their names, as any order will do."""
    positions, width = bundle.positions, bundle.d_model
    tall = (1, length) if turned else (length, 1)
    inputs = {
        "decoder/input_layer2": ((*tall, width), "token_embeddings"),
        "decoder/input_layer1": ((1, positions, width), "encoder_hidden_states"),
    }
    outputs = {
        name: ((1, length, end - begin), f"logits_{part}")
        for part, (name, (begin, end)) in enumerate(
            zip(DECODER_OUTPUTS, vocabulary_parts(bundle.vocabulary_size), strict=True)
        )
    }
    hef = {"graph": "hailo_decoder.onnx", "order": DECODER_OUTPUTS} | hef
    return write_network(
        bundle.folder / "decoder.hef", hef.pop("inputs", inputs),
        hef.pop("outputs", dict(sorted(outputs.items()))), chip, **hef,
    )  # fmt: skip


def enlist(folder: Path, file: Path) -> None:
    """Enters a file into a bundle's manifest."""
    import hashlib

    manifest = json.loads((folder / "bundle.json").read_text())
    content = file.read_bytes()
    manifest["files"][file.name] = {
        "sha256": hashlib.sha256(content).hexdigest(),
        "size": len(content),
    }
    (folder / "bundle.json").write_text(json.dumps(manifest))
