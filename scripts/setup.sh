# Sourced by the programs beside it, which stand in the checkout then: installs what is missing, sets
# $PYTHON to the environment's interpreter. Needs Debian (or a relative) with apt, as root or with sudo.
#   set_up demo|dev

PACKAGES=(python3 python3-venv mosquitto mosquitto-clients pulseaudio pulseaudio-utils
          libasound2-plugins libportaudio2)
# for `python -m figures.demo` and the like, and for what they start
export PYTHONPATH=$PWD:$PWD/tests:$PWD/scripts

say() { printf '%s\n' "$*" >&2; }

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; elif command -v sudo >/dev/null; then sudo "$@"; else
        say "needs root or sudo for: $*"; return 1
    fi
}

install_packages() {
    local missing=()
    for package in "${PACKAGES[@]}"; do
        dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' \
            || missing+=("$package")
    done
    [ ${#missing[@]} = 0 ] && return
    say "installing ${missing[*]}"
    as_root apt-get update -qq
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
        --no-install-recommends "${missing[@]}" >/dev/null
}

# For the page's tests, where the distribution has one as a package (Ubuntu has none)
install_browser() {
    command -v chromedriver >/dev/null && return
    apt-cache show chromium-driver >/dev/null 2>&1 || as_root apt-get update -qq
    say "installing a browser for the page's tests"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        chromium chromium-driver fonts-dejavu-core >/dev/null \
        || say "no chromium-driver: the page's tests in a browser are skipped"
}

# For the test that the network is told of the Wyoming server
install_avahi() {
    command -v avahi-daemon >/dev/null && return
    say "installing avahi-daemon for a test"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        avahi-daemon >/dev/null || say "no avahi-daemon: its tests are skipped"
}

# For the tests of several rooms; Debian's unit would listen on loopback's port 4222
install_nats() {
    [ -x /usr/sbin/nats-server ] && return
    say "installing nats-server for the tests of several rooms"
    if ! as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        nats-server >/dev/null; then
        say "no nats-server: its tests are skipped"
    elif [ -d /run/systemd/system ]; then
        as_root systemctl disable --now --quiet nats-server
    fi
}

find_python() {
    local candidate
    for candidate in ${ROOMSCRIBE_PYTHON:-python3 python3.13 python3.12 python3.11 /usr/bin/python3}; do
        if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
        then command -v "$candidate"; return; fi
    done
    say "no Python of at least 3.11 with venv found; install python3 and python3-venv"
    return 1
}

# Clients of others, each release in a folder of its own: tests/wyoming talk to them
install_clients() {
    local release folder
    for release in 1.5.4 1.7.1 1.10.2; do
        folder=.venv/wyoming/$release
        [ -d "$folder" ] || .venv/bin/python -m pip install --quiet --disable-pip-version-check \
            --no-deps --target "$folder" "wyoming==$release" 2> >(grep -v '^WARNING: Location' >&2) \
            || { rm -rf "$folder"; say "no wyoming $release; its tests are skipped"; }
    done
}

# One environment, .venv: made anew for another Python, completed when pyproject.toml changed.
set_up() {
    local kind=$1 base stamp extras=''
    [ "$kind" = dev ] && extras='[dev]' && PACKAGES+=(ffmpeg)
    install_packages
    [ "$kind" != dev ] || install_browser
    [ "$kind" != dev ] || install_avahi
    [ "$kind" != dev ] || install_nats
    base=$(find_python)
    stamp=.venv/.set-up-$kind
    if [ "$("$base" -VV)" != "$(cat .venv/.python 2>/dev/null)" ]; then
        say "making the Python environment .venv"
        "$base" -m venv --clear .venv
        "$base" -VV > .venv/.python
    fi
    if ! cmp -s pyproject.toml "$stamp"; then
        say "installing the Python packages that pyproject.toml names ($kind)"
        .venv/bin/python -m pip install --quiet --disable-pip-version-check -e ".$extras" \
            2> >(grep -v '^WARNING: Location' >&2)
        cp pyproject.toml "$stamp"
    fi
    [ "$kind" != dev ] || install_clients
    PYTHON=$PWD/.venv/bin/python
}
