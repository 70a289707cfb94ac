# Runs inside the virtual machine of scripts/test-vm; every line of its report begins with "VM: ".
set -u

tell() { echo "VM: [$(cut -d ' ' -f 1 /proc/uptime) s] $*"; }
give_up() {
    tell "FAILED: $*"
    systemctl status --no-pager roomscribe
    journalctl -u roomscribe -n 40 --no-pager -o short-monotonic
    cat /vm/heard
    exit 1
}
# until_true SECONDS WHAT COMMAND...
until_true() {
    local left=$1 what=$2; shift 2
    until "$@"; do
        left=$((left - 1)); [ "$left" -gt 0 ] || give_up "$what did not come"
        sleep 1
    done
}
status() { systemctl show -P StatusText roomscribe; }
listens() { case $(status) in listening*) true ;; *) false ;; esac; }
lacks_microphone() { case $(status) in waiting*) true ;; *) false ;; esac; }
heard() { grep -c /transcript /vm/heard; }
has_heard() { [ "$(heard)" -ge "$1" ]; }
speak() { aplay -q -D plughw:Loopback,0,0 "/vm/$1.wav"; }
driver=/sys/bus/platform/drivers/snd_aloop

tell "kernel $(uname -r), $(. /etc/os-release; echo "$PRETTY_NAME")"
touch /vm/heard
apt-get install -y /vm/*.deb > /vm/apt.log 2>&1 || { cat /vm/apt.log; give_up "apt"; }
systemctl is-active --quiet roomscribe || give_up "not running after installation"
until_true 30 "STATUS naming the missing microphone" lacks_microphone
tell "installed; STATUS: $(status)"
systemctl start mosquitto
mosquitto_sub -V mqttv5 -q 1 -t 'roomscribe/#' -v > /vm/heard &
modprobe snd-aloop || give_up "no snd-aloop"
printf '[capture]\ndevice = "PCM (hw:0,1)"\nsilence_s = 0\n' > /etc/roomscribe/roomscribe.toml
systemctl reload roomscribe
until_true 60 "the microphone" listens
tell "reloaded; STATUS: $(status)"
sleep 3
speak 00
until_true 60 "a transcript" has_heard 1
tell "said '$(cat /vm/00.txt)', heard $(grep -o '"text":[^,]*' /vm/heard | tail -n 1)"
words=$(grep -o '"text": *"[^"]*"' /vm/heard | tail -n 1 | tr A-Z a-z)
right=0
for word in $(cat /vm/00.txt); do case $words in *"$word"*) right=$((right + 1)) ;; esac; done
[ "$right" -ge 5 ] || give_up "of eight words $right are right"
# it comes back as card 1, when the daemon has closed it and another has taken its number
restarts=$(systemctl show -P NRestarts roomscribe)
echo snd_aloop.0 > $driver/unbind &
until_true 60 "STATUS naming the loss" lacks_microphone
tell "card removed; STATUS: $(status)"
wait $!
modprobe snd-dummy || give_up "no snd-dummy"
echo snd_aloop.0 > $driver/bind
begun=$(cut -d ' ' -f 1 /proc/uptime)
until_true 60 "the microphone after its return" listens
tell "card back since $begun s as $(grep -o '^ *[0-9]* .Loopback' /proc/asound/cards); STATUS: $(status)"
journalctl -u roomscribe -n 12 --no-pager -o short-monotonic | sed 's/^/VM: /'
[ "$(systemctl show -P NRestarts roomscribe)" = "$restarts" ] || give_up "the daemon was restarted"
tell "processes: $(systemctl show -P TasksCurrent roomscribe) tasks, $(pgrep -c -u roomscribe) processes"
sleep 3
before=$(heard)
speak 01
until_true 60 "a transcript after the card's return" has_heard $((before + 1))
tell "card back; heard $(grep -o '"text":[^,]*' /vm/heard | tail -n 1)"
grep -q CapEff:.0000000000000000 "/proc/$(systemctl show -P MainPID roomscribe)/status" || give_up "capabilities"
# the device filter of the unit is real here: under it even root opens the card and not the disk
systemd-run -q --pipe --wait -p DevicePolicy=closed -p DeviceAllow='char-alsa rw' \
    bash -c 'true < /dev/snd/timer && ! true < /dev/vda' 2> /dev/null || give_up "the device filter"
# so is its filter of ports: it may listen on what the configuration wants, and on what the kernel chooses
may_listen() {
    systemd-run -q --pipe --wait -p SocketBindDeny=1-65535 "$@" 2> /dev/null
}
bind='import socket, sys; socket.create_server(("", int(sys.argv[1])))'
may_listen python3 -c "$bind" 0 || give_up "paho could not talk to itself"
! may_listen python3 -c "$bind" 10300 || give_up "the filter of ports is open"
may_listen -p SocketBindAllow=tcp:10300 python3 -c "$bind" 10300 || give_up "the port that is wanted is closed"
tell "memory: $(systemctl show -P MemoryCurrent roomscribe) bytes, ceiling $(systemctl show -P MemoryMax roomscribe)"
systemctl stop roomscribe || give_up "stop"
tell "passed"
