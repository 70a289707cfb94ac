"""What the encoder and the decoder take at least on this machine, on one thread.

The encoder computes: its multiply-adds take as long as in a large product of matrices. The decoder
reads: its weights, and keys and values of the sound, once a token, at the speed of memory.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from appliance.convert import RuntimeGraph
from appliance.infer import Session
from appliance.model import SCREENED_FILE, Bundle

SIZE = 1024
"""Rows and columns of the measured product."""


def describe_limits(bundle: Bundle) -> str:
    """Return what the machine can do, and how long a window and a token take at least. Raises
    ModelError."""
    narrow, wide = (SIZE**3 / _product_s(int8=int8) / 1e9 for int8 in (True, False))
    memory = np.ones(1 << 25, np.int64)  # more than a processor's cache holds
    read = memory.nbytes / _seconds(memory.max) / 1e9
    weights, others = (count / 1e9 for count in multiply_adds(bundle))
    encoder_s = weights / (narrow if bundle.quantize == "int8" else wide) + others / wide
    token = token_bytes(bundle) / 1e9
    return (
        f"limits of this machine: {narrow:.0f} billion 8-bit multiply-adds a second, {wide:.0f} in "
        f"float32, {read:.1f} GB/s read: at least {1000 * encoder_s:.1f} ms of encoder for a "
        f"window ({weights:.2f} billion of weights, {others:.2f} others in float32), and "
        f"{1000 * token / read:.1f} ms for a token ({1000 * token:.1f} MB)"
    )


def multiply_adds(bundle: Bundle) -> tuple[int, int]:
    """Return the multiply-adds of the encoder for a whole window: with matrices of weights, and the
    others, which are float32 in every model: convolutions and attention."""
    width, places = bundle.d_model, bundle.positions
    convolved = places * 3 * width * (2 * bundle.n_mels + width)
    attended = bundle.encoder_layers * 2 * places**2 * width
    return bundle.encoder_layers * places * 12 * width**2, convolved + attended


def token_bytes(bundle: Bundle) -> int:
    """Return the bytes that a token needs: the decoder's weights, the matrix of the logits, and the
    keys and values of the sound, which are float32."""
    size = 8 * bundle.decoder_layers * bundle.attended * bundle.d_model
    size += sum(file.stat().st_size for file in bundle.folder.glob("step.*"))
    if SCREENED_FILE not in bundle.files:
        size += len(bundle.kept) * bundle.d_model * (4 if bundle.quantize == "none" else 1)
    return size


def _product_s(*, int8: bool) -> float:
    """Return the seconds of a product of two matrices of SIZE by SIZE, as the encoder's are."""
    matrix = np.random.default_rng(0).normal(size=(SIZE, SIZE)).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        graph, file = RuntimeGraph({}, int8=int8, many_rows=True), Path(folder) / "product.onnx"
        product = graph.project(graph.input("left", (SIZE, SIZE)), "right", matrix)
        graph.output(product, "product", (SIZE, SIZE))
        graph.save(file, "product")
        session = Session(file, 1)
    return _seconds(lambda: session.run({"left": matrix}))


def _seconds(work: Callable[[], object]) -> float:
    """Return the median processor time of nine runs on all threads, after one to warm up."""
    times = []
    for _ in range(10):
        begun_s = time.process_time()
        work()
        times.append(time.process_time() - begun_s)
    return statistics.median(times[1:])
