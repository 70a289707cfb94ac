"""The encoder's process: opens the chip, runs the daemon's jobs one at a time, reads the sensors.

Standard input: a line for each job, whose mel lies in the shared memory. Standard output: answers,
one JSON object per line. The first one describes the open chip, `done` ends a job, `readings` comes
now and then after a job, and `error` is the last one: then the process ends and with it, by the
kernel, everything that HailoRT holds. Only if the daemon closes the pipe, the chip is closed in
HailoRT's way.
"""

import json
import os
import sys
import time
from dataclasses import asdict
from typing import Any, NoReturn

from appliance.infer.hailo import diagnosis
from appliance.infer.hailo.diagnosis import NpuError
from appliance.infer.hailo.npu import Npu
from appliance.infer.hailo.shared import BEAT_S, Order, SharedArrays
from appliance.process import begin
from appliance.system import BackgroundTask, one_line


def main() -> NoReturn:
    """Serve until the daemon closes the pipe or ends, or the chip fails."""
    output = begin()
    order = Order(**json.loads(sys.argv[2]))
    arrays = SharedArrays(int(sys.argv[3]), tuple(order.mel), tuple(order.states))
    BackgroundTask(lambda: _beat(arrays), "heartbeat")
    try:
        _serve(order, arrays, output)
    except NpuError as error:
        _send(output, error=error.text, cause=error.cause)
    except Exception as error:
        _send(output, error=one_line(error), cause="unknown")
    os._exit(0)


def _beat(arrays: SharedArrays) -> None:
    while True:
        arrays.beat()
        time.sleep(BEAT_S)


def _serve(order: Order, arrays: SharedArrays, output: int) -> None:
    """Open the chip and encode until the pipe is closed. Raises NpuError."""
    npu = Npu(order)
    _send(output, **_describe(npu))
    read_s = time.monotonic()
    for _ in sys.stdin.buffer:
        arrays.states[:] = npu.encode(arrays.mel[0])
        _send(output, done=True)
        if time.monotonic() >= read_s + order.read_every_s:
            npu.read_sensors()
            _send(output, **_describe(npu))
            read_s = time.monotonic()
    npu.close()


def _describe(npu: Npu) -> dict[str, Any]:
    """Return the chip's identity, versions and readings, as `FailoverEncoder.facts` has them."""
    facts = {
        "job_limit_ms": npu.job_ms,
        "chip": npu.name,
        "firmware": npu.identity.firmware,
        "driver": diagnosis.driver_version(),
        "library": str(npu.binding.__version__),
        **asdict(npu.readings),
    }
    return {"facts": facts}


def _send(output: int, **fields: object) -> None:
    os.write(output, json.dumps(fields).encode() + b"\n")
