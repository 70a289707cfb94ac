#!/bin/sh
# Prints each sentence as it is said: subscriber.sh [HOST [PORT]]. Needs mosquitto-clients and jq.
# A user and password go into ~/.config/mosquitto_sub, one option in a line (-u NAME, -P PASSWORD).
mosquitto_sub -h "${1:-localhost}" -p "${2:-1883}" -q 1 -t 'roomscribe/+/transcript' |
    jq -r --unbuffered '"\(.node): \(.text)" + if .late then " (late)" else "" end'
