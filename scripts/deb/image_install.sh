#!/bin/sh
# Installs Roomscribe's package for an image, as root in a Debian trixie that becomes it: image_install.sh DEB...
# User and group have the same number in every image, since a volume outlives it.
set -eu
groupadd --system --gid 10300 roomscribe
useradd --system --uid 10300 --gid 10300 --groups audio --no-create-home --home-dir /var/lib/roomscribe \
    --shell /usr/sbin/nologin roomscribe
apt-get update -qq
# parec reads PulseAudio (pulse:SOURCE), and one of ALSA's plugins plays there: the others need ffmpeg's libraries.
# libspeexdsp1 removes a reference; tini is the first process
apt-get install -y -qq --no-install-recommends ca-certificates systemd-standalone-sysusers libspeexdsp1 \
    pulseaudio-utils tini "$@"
cd /tmp && apt-get download -qq libasound2-plugins
dpkg-deb --fsys-tarfile libasound2-plugins_*.deb | tar -x -C / --wildcards '*_pulse.so' '*/50-pulseaudio.conf' '*/copyright'
# one volume holds everything: the log, the models and the page's password
rm -rf /var/lib/roomscribe /var/lib/roomscribe-models /var/lib/roomscribe-web
install -d -o 10300 -g 10300 -m 700 /var/lib/roomscribe
ln -s roomscribe/models /var/lib/roomscribe-models
ln -s roomscribe/page /var/lib/roomscribe-web
chown -R 10300:10300 /etc/roomscribe
# what no container needs, and what differs from one build to the next
find /usr/share/doc -mindepth 1 -not -path '*/roomscribe/*' -not -name copyright \( -not -type d -o -empty \) -delete
rm -rf /usr/share/man/* /usr/share/locale/* /usr/share/info/* /var/lib/apt/lists/* /var/cache/apt/*.bin \
    /var/cache/apt/archives/*.deb /var/cache/ldconfig/aux-cache /var/cache/debconf/*-old /var/lib/dpkg/*-old \
    /var/log/*.log /var/log/apt/* /etc/*- /tmp/* /var/tmp/*
: > /etc/machine-id
sed -i -E 's/^([^:]*:[^:]*):[0-9]*:/\1:20000:/' /etc/shadow
