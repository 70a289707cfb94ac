"""The encoder's process: opens the chip, runs the daemon's jobs one at a time, reads the sensors.

Standard input: a line for each job, whose mel lies in the shared memory. Standard output: answers,
one JSON object per line. `facts` comes first, of the open chip, and now and then after a job, which
`done` ends. `error` is the last one: then the process ends and with it, by the kernel, everything
that HailoRT holds. Only if the daemon closes the pipe, the chip is closed in HailoRT's way.
"""

import json
import os
import sys
import time
from typing import NoReturn

from appliance.infer.hailo.device import identify, load_binding
from appliance.infer.hailo.diagnosis import REPEATED, NpuError
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
        _send(output, error=f"{one_line(error)}; {REPEATED}", cause="unknown")
    os._exit(0)


def _beat(arrays: SharedArrays) -> None:
    while True:
        arrays.beat()
        time.sleep(BEAT_S)


def _serve(order: Order, arrays: SharedArrays, output: int) -> None:
    """Open the chip and encode until the pipe is closed. Raises NpuError."""
    if not order.hef:
        _send(output, facts={"chip": identify(load_binding()).chip})
        return
    npu = Npu(order)
    _describe(npu, output)
    read_s = time.monotonic()
    for _ in sys.stdin.buffer:
        arrays.states[:] = npu.encode(arrays.mel[0])
        _send(output, done=True)
        if time.monotonic() >= read_s + order.read_every_s:
            npu.read_sensors()
            _describe(npu, output)
            read_s = time.monotonic()
    npu.close()


def _describe(npu: Npu, output: int) -> None:
    """Send what `FailoverEncoder.facts` returns."""
    celsius = npu.readings.temperature_c
    _send(output, facts={"chip": npu.name, "job_limit_ms": npu.job_ms, "temperature_c": celsius})


def _send(output: int, **fields: object) -> None:
    os.write(output, json.dumps(fields).encode() + b"\n")
