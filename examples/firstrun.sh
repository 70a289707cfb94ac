#!/bin/bash
# For the first boot of a memory card that Raspberry Pi Imager wrote (Raspberry Pi OS Lite, trixie): installs Roomscribe from
# your apt repository and, with an invitation, joins a fleet.
#
# Let Imager set host name, user, Wi-Fi and SSH. Then edit the lines below, copy this file to the card's boot partition, and
# after the first login run:    sudo bash /boot/firmware/firstrun.sh
# To have it run by itself, add the two lines at the end of the file user-data (beside this one) to the card's own user-data.
# The invitation lets one machine join within a day, so this file deletes itself when it is done. Not tried on a real Pi.
set -euo pipefail

REPOSITORY=ADDRESS
PACKAGE=roomscribe-satellite        # or roomscribe, if this machine transcribes by itself
INVITATION=                         # what `sudo roomscribe fleet invite NODE` printed on the server; empty: no fleet

for _ in $(seq 60); do getent hosts "$(sed 's|.*//||; s|[:/].*||' <<< "$REPOSITORY")" > /dev/null && break; sleep 5; done
apt-get update -qq && apt-get install -y -qq wget ca-certificates
wget -q -O /usr/share/keyrings/roomscribe.gpg "$REPOSITORY/roomscribe.gpg"
wget -q -O /etc/apt/sources.list.d/roomscribe.sources "$REPOSITORY/roomscribe.sources"
apt-get update -qq
apt-get install -y -qq "$PACKAGE"
mkdir -p /etc/systemd/system.conf.d
printf '[Manager]\nRuntimeWatchdogSec=1min\n' > /etc/systemd/system.conf.d/watchdog.conf
[ -z "$INVITATION" ] || roomscribe fleet join --yes "$INVITATION"
rm -- "$0"
