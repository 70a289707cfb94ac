# Sourced by the programs beside it, whose working directory is the checkout: installs what is missing and
# sets $PYTHON to the interpreter of the environment .venv. Needs Debian (or a relative) with apt.
#   set_up demo|dev        demo: what scripts/demo needs; dev: what every test and measurement needs
# The versions and hashes of the Python packages are those of scripts/constraints/ (see scripts/lock), so that a
# checkout makes the same environment next year. ROOMSCRIBE_CONSTRAINTS names another file, or is empty for
# the newest versions.

PYTHONS=(3.11 3.12 3.13)
PACKAGES=(python3 python3-venv mosquitto mosquitto-clients pulseaudio pulseaudio-utils
          libasound2-plugins libportaudio2)
# for the tests: where one of these is not available, the tests that need it are skipped by name
TEST_PACKAGES=(curl iproute2 ffmpeg libspeexdsp1 chromium chromium-driver fonts-dejavu-core avahi-daemon nats-server
               jq openssl strace e2fsprogs tini)
# a step that takes longer says so
TELL_EACH_S=8
# for `python -m figures.demo` and the like, and for what they start
export PYTHONPATH=$PWD:$PWD/tests:$PWD/scripts

say() { printf '%s\n' "$*" >&2; }
fail() { say "${0##*/}: $*"; exit 1; }

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo -- "$@"; fi
}

# Says every few seconds what takes so long, until it is killed or this script has ended
still_at() {
    local begun=$SECONDS
    exec 5<> <(:)
    # a pause without a program that would outlive it
    while read -r -t $TELL_EACH_S -u 5 || kill -0 $$ 2> /dev/null; do say "  $1: $((SECONDS - begun)) s so far"; done
}

# One clear line in place of the hundred that apt and pip print: quietly WHAT COMMAND...
quietly() {
    local what=$1 log status=0 reason advice ticker; shift
    log=$(mktemp) || fail "no temporary file can be written in ${TMPDIR:-/tmp}: is the disk full?"
    still_at "$what" &
    ticker=$!
    "$@" > "$log" 2>&1 || status=$?
    { kill "$ticker" && wait "$ticker"; } 2> /dev/null || true
    if [ $status != 0 ]; then
        # a warning of sudo, not the cause
        sed -i '/^sudo: unable to resolve host/d' "$log"
        reason=$(grep -aiE 'no space left|resolv|resolution|unreachable|timed out|refused|password is required|sudoers|^E: |^ERROR: ' "$log" | head -n 1)
        case $reason in
            *[Nn]o\ space*) advice="Free some disk space and run it again" ;;
            *esol*|*nreachable*|*imed\ out*|*refused*) advice="Connect this machine to the network and run it again" ;;
            *sudo*|*password*) advice="Run it as root, or as a user who may use sudo" ;;
            *) advice="The whole output is in $log" ;;
        esac
        say "${0##*/}: could not $what: ${reason:-$(tail -n 1 "$log")}. $advice."
        case $advice in *"$log") return $status ;; esac
    fi
    rm -f "$log"
    return $status
}

# True if dpkg has it installed
is_installed() {
    case $(dpkg-query -W -f='${Status}' "$1" 2>/dev/null) in *"ok installed") ;; *) return 1 ;; esac
}

# need_space MEGABYTES FOLDER
need_space() {
    local free
    free=$(df -Pm "$2" | awk 'NR == 2 { print $4 }')
    [ "${free:-0}" -ge "$1" ] || fail "only $free MB are free on the disk of $2 and $1 MB are needed: free some space and run it again"
}

need_debian() {
    local name
    name=$(. /etc/os-release 2>/dev/null && printf %s "${PRETTY_NAME:-}") || true
    command -v apt-get >/dev/null && command -v dpkg-query >/dev/null \
        || fail "this machine runs ${name:-an unknown system} and this needs Debian bookworm or trixie, or a relative with apt"
}

# install_packages: those of PACKAGES that are missing, and of OPTIONAL those that this distribution has
install_packages() {
    local package missing=() optional=() available
    for package in "${PACKAGES[@]}"; do is_installed "$package" || missing+=("$package"); done
    for package in ${OPTIONAL[@]+"${OPTIONAL[@]}"}; do is_installed "$package" || optional+=("$package"); done
    # an optional package that this distribution lacks is looked for once, not at each run
    if [ ${#missing[@]} = 0 ] && [ "${optional[*]}" = "$(cat .venv/.unavailable 2>/dev/null)" ]; then return; fi
    if [ "$(id -u)" != 0 ] && ! command -v sudo >/dev/null; then
        [ ${#missing[@]} = 0 ] || fail "only root can install these Debian packages: ${missing[*]}. Run it as root, or install sudo"
        say "only root can install ${optional[*]}: the tests that need them are skipped"
        return
    fi
    need_space 1500 /var
    quietly "update the list of Debian packages" as_root apt-get update -qq -o APT::Update::Error-Mode=any || exit 1
    available=()
    for package in ${optional[@]+"${optional[@]}"}; do
        case $(apt-cache policy "$package") in *"Candidate: "[!\(]*) available+=("$package") ;; esac
    done
    [ ${#available[@]} = ${#optional[@]} ] \
        || say "this distribution does not have all of ${optional[*]}: some tests are skipped, and say why"
    [ $((${#missing[@]} + ${#available[@]})) = 0 ] && return
    say "installing the Debian packages" ${missing[@]+"${missing[@]}"} ${available[@]+"${available[@]}"}
    quietly "install them" as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
        --no-install-recommends ${missing[@]+"${missing[@]}"} ${available[@]+"${available[@]}"} || exit 1
    # Debian's unit would listen on loopback's port 4222
    case " ${available[*]} " in *" nats-server "*)
        [ ! -d /run/systemd/system ] || as_root systemctl disable --now --quiet nats-server ;;
    esac
}

# After install_packages: which of OPTIONAL could not be installed
note_unavailable() {
    local package absent=()
    for package in ${OPTIONAL[@]+"${OPTIONAL[@]}"}; do is_installed "$package" || absent+=("$package"); done
    printf '%s' "${absent[*]}" > .venv/.unavailable
}

# The first interpreter of a supported version that can make an environment
find_python() {
    local candidate version found=()
    for candidate in ${ROOMSCRIBE_PYTHON:-python3 /usr/bin/python3 "${PYTHONS[@]/#/python}"}; do
        version=$("$candidate" -c 'import sys, venv, ensurepip; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || continue
        case " ${PYTHONS[*]} " in *" $version "*) command -v "$candidate"; return ;; esac
        found+=("$version")
    done
    fail "this needs Python ${PYTHONS[0]} to ${PYTHONS[-1]} with venv, and found ${found[*]:-none}; install python3 and python3-venv, or name another with ROOMSCRIBE_PYTHON"
}

pip_install() {
    quietly "install Python packages" .venv/bin/python -m pip install --disable-pip-version-check "$@"
}

# Other projects' clients, for tests/wyoming: each release in a folder of its own. And axe-core, which checks the
# page: that is JavaScript in a package of PyPI whose other dependencies are not needed.
install_clients() {
    local release
    for release in wyoming/1.5.4 wyoming/1.7.1 wyoming/1.10.2 axe-playwright-python/0.1.8; do
        [ -d ".venv/$release" ] || pip_install --no-deps --target ".venv/$release" "${release/\//==}" \
            || { rm -rf ".venv/$release"; say "the tests that need ${release/\// } are skipped"; }
    done
}

# The file of versions for this interpreter; none if ROOMSCRIBE_CONSTRAINTS is set and empty.
constraints() {
    local file=scripts/constraints/python$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])').txt
    file=${ROOMSCRIBE_CONSTRAINTS-$file}
    [ -z "$file" ] || [ -r "$file" ] || fail "ROOMSCRIBE_CONSTRAINTS names $file, which cannot be read"
    [ -z "$file" ] || readlink -f "$file"
}

# install_python_packages KIND VERSIONS EXTRAS: what VERSIONS names, each file with a hash that stands there, and the
# checkout itself, which has none; without VERSIONS the newest
install_python_packages() {
    local pinned
    [ -n "$2" ] || { pip_install -e ".$3"; return; }
    pinned=$(mktemp)
    if [ "$1" = demo ]; then sed '/^# for tests/,$d' "$2"; else cat "$2"; fi > "$pinned"
    # setuptools first: it builds what has no wheel
    sed -n '/^setuptools==/,/[^\\]$/p' "$pinned" > "$pinned.first"
    pip_install --no-deps --require-hashes -r "$pinned.first" \
        && pip_install --no-deps --require-hashes --no-build-isolation -r "$pinned" \
        && pip_install --no-deps --no-build-isolation -e .
    local status=$?
    rm -f "$pinned" "$pinned.first"
    return $status
}

# One environment, .venv: made anew for another Python, completed if pyproject.toml or the versions changed.
make_environment() {
    local kind=$1 base versions extras='[all]' stamp=.venv/.set-up-$1
    base=$(find_python) || exit 1
    versions=$(constraints "$base") || exit 1
    [ "$kind" = dev ] && extras='[all,dev,benchmark]'
    if [ "$("$base" -VV) in $PWD" != "$(cat .venv/.python 2>/dev/null)" ]; then
        need_space 1000 "$PWD"
        say "making the Python environment .venv"
        quietly "make the Python environment .venv" "$base" -m venv --clear .venv || exit 1
        printf '%s in %s\n' "$("$base" -VV)" "$PWD" > .venv/.python
    fi
    if ! cat pyproject.toml ${versions:+"$versions"} | cmp -s - "$stamp"; then
        say "installing the Python packages that pyproject.toml names ($kind)"
        install_python_packages "$kind" "$versions" "$extras" || exit 1
        cat pyproject.toml ${versions:+"$versions"} > "$stamp"
    fi
}

set_up() {
    local kind=$1 OPTIONAL=()
    [ ! -L .venv ] || fail ".venv is a link to $(readlink .venv), which another checkout uses: remove the link"
    [ "$kind" = demo ] || OPTIONAL=("${TEST_PACKAGES[@]}")
    need_debian
    [ -w . ] || fail "$PWD cannot be written: clone it into a folder of your own"
    # two programs that are started at the same time set up one after the other
    exec 9< .
    flock --nonblock 9 || { say "waiting for another program that sets this checkout up"; flock 9; }
    install_packages
    make_environment "$kind"
    [ "$kind" = demo ] || { install_clients; note_unavailable; }
    PYTHON=$PWD/.venv/bin/python
    # appliance/bundles/tiny.en: a link to the model in the user's cache, where it is made once
    "$PYTHON" -m built_in_model || exit 1
    exec 9<&-
}
