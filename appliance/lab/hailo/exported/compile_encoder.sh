#!/bin/sh
# Makes CHIP/@network@_encoder.hef from encoder.onnx with Hailo's Dataflow Compiler (x86-64).
#     ./compile_encoder.sh hailo8|hailo8l|hailo10h [MODEL_SCRIPT.alls]
set -eu
cd "$(dirname "$0")"
chip=${1:?give a chip: hailo8, hailo8l, hailo10h}
case $chip in
    hailo8|hailo8l|hailo10h) ;;
    *) echo "chip: expected hailo8, hailo8l, hailo10h, found $chip" >&2; exit 64 ;;
esac
if ! test -f calib_set.npy; then
    echo "calib_set.npy: not there; export again with recordings to calibrate by" >&2
    exit 66
fi
if ! command -v hailo >/dev/null; then
    echo "hailo: command not found; activate the environment of the Dataflow Compiler" >&2
    exit 69
fi
mkdir -p "$chip"
hailo parser onnx encoder.onnx --net-name @network@_encoder \
    --hw-arch "$chip" --har-path "$chip/@network@_encoder.har"
hailo optimize "$chip/@network@_encoder.har" --hw-arch "$chip" \
    --calib-set-path calib_set.npy ${2:+--model-script "$2"} \
    --output-har-path "$chip/@network@_encoder_optimized.har"
hailo compiler "$chip/@network@_encoder_optimized.har" --hw-arch "$chip" --output-dir "$chip"
