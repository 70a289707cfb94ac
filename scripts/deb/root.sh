# Sourced by scripts/build-deb, build-image, build-repo, test-deb, test-image and test-vm: Debian trixie roots, made once by
# debootstrap and kept in a cache outside the checkout. How the host reaches its packages (mirror,
# proxy, certificates) is copied from the host's own apt.
#   $ROOMSCRIBE_BUILD_CACHE   the cache (default: $XDG_CACHE_HOME/roomscribe-build)
#   $ROOMSCRIBE_MIRROR        a Debian mirror in place of the host's

. "${BASH_SOURCE[0]%/*}/../setup.sh" # say, still_at

SUITE=trixie
CACHE=${ROOMSCRIBE_BUILD_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/roomscribe-build}
BASE_PACKAGES=systemd-sysv,systemd,dbus,udev,ca-certificates,iproute2
# nothing is compiled: no build-essential
BUILD_PACKAGES=(debhelper dh-python python3 python3-argparse-manpage python3-numpy python3-onnx python3-shtab
                fakeroot)
LINT_PACKAGES=(lintian)
REPOSITORY_PACKAGES=(apt-utils gnupg)
TOOLS_PACKAGES=(systemd-container)
IMAGE_PACKAGES=(apparmor buildah podman crun flac mosquitto mosquitto-clients python3)
TEST_PACKAGES=(mosquitto mosquitto-clients nats-server bash-completion man-db sudo jq netcat-openbsd)
# these bring libraries that the package must bring by itself: libsndfile1, numpy
LATER_PACKAGES=(alsa-utils pulseaudio pulseaudio-utils libasound2-plugins python3-pytest python3-safetensors)
HOST_PACKAGES=(debootstrap debian-archive-keyring)

# Says loudly why nothing can be built or tested here, and ends with 77.
cannot_run() {
    say "*****************************************************************"
    say "* ${0##*/} DID NOT RUN: $*"
    say "*****************************************************************"
    exit 77
}

# True on a machine on which a Debian can be booted (deb/boot.sh), or an image run.
can_boot() { [ "$(id -u)" = 0 ] && grep -qw overlay /proc/filesystems && unshare -m -n -p -C -f true 2>/dev/null; }

need_host() {
    [ "$(id -u)" = 0 ] || cannot_run "it needs root (debootstrap, mount and pivot_root)"
    unshare -m true 2>/dev/null || cannot_run "this machine does not allow mount namespaces"
    local package missing=()
    for package in "${HOST_PACKAGES[@]}" "$@"; do
        dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
    done
    [ ${#missing[@]} = 0 ] && return
    say "installing ${missing[*]}"
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
        --no-install-recommends "${missing[@]}" >/dev/null; } || cannot_run "${missing[*]} cannot be installed"
}

# need_debs ARCHITECTURE FILE...: ends the script unless they are packages for it
need_debs() {
    local file found
    for file in "${@:2}"; do
        found=$(dpkg-deb -f "$file" Architecture 2> /dev/null) || { say "${0##*/}: expected a Debian package, found $file"; exit 1; }
        case $found in "$1" | all) ;; *) say "${0##*/}: $file is for $found, not for $1"; exit 1 ;; esac
    done
}

# deb_option ARCHITECTURE [--deb FILE]: sets $deb to FILE or to nothing, and ends the script if an argument is wrong
deb_option() {
    case $#:${2:-} in
        1:) deb='' ;;
        3:--deb) deb=$(realpath "$3"); need_debs "$1" "$deb"; take_deb "$1" ;;
        *) sed -n '2,5s/^# *//p' "$0" >&2; exit 2 ;;
    esac
}

# take_deb ARCHITECTURE: sets $deb to a new package in $work unless there is one, and $model to the one beside it
take_deb() {
    [ -n "$deb" ] || deb=$(scripts/build-deb "$1" --output "$work/built" | tail -n 1)
    model=$(dirname "$deb")/roomscribe-model-tiny-en_$(dpkg-deb -f "$deb" Version)_all.deb
    [ -f "$model" ] || { say "${0##*/}: $model: no such file; scripts/build-deb makes both"; exit 1; }
}

# take_turn NAME FOLDER: waits until no other script has the turn NAME, and keeps it until this script and
# its children have ended. Without it, a script of another checkout, whose recipe for a root differs,
# would replace that root while it is in use. Makes $work, which is $CACHE/FOLDER.XXXXXX until this script ends, and
# removes those of scripts that were killed.
take_turn() {
    local file=$CACHE/turn-$1
    mkdir -p "$CACHE"
    exec 8>> "$file"
    flock -n 8 || { say "${0##*/} waits for $(cat "$file")"; flock 8; }
    echo "${0##*/} (process $$ in $PWD, started at $(date +%T))" > "$file"
    rm -rf --one-file-system "$CACHE/$2".??????
    work=$(mktemp -d "$CACHE/$2.XXXXXX")
    trap 'rm -rf "$work"' EXIT
}

# Lets this machine run programs of another architecture until its restart, through trixie's qemu: bookworm's cannot run tini.
need_foreign() {
    local binfmt=/proc/sys/fs/binfmt_misc qemu
    [ "$1" != "$(dpkg --print-architecture)" ] || return 0
    [ "$1" = arm64 ] || cannot_run "no emulation of $1 is known here"
    [ -e $binfmt/register ] || mount -t binfmt_misc binfmt_misc $binfmt || cannot_run "this kernel has no binfmt_misc, which runs programs of $1"
    [ ! -e $binfmt/roomscribe-arm64 ] || return 0
    qemu=$(packages_root qemu "$(dpkg --print-architecture)" qemu-user)
    printf '%s' ":roomscribe-arm64:M::\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00:\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff:$qemu/usr/bin/qemu-aarch64:F" \
        > $binfmt/register || cannot_run "qemu cannot be registered in binfmt_misc"
}

# The mirror that the host's apt uses for Debian itself.
mirror() {
    local uri=${ROOMSCRIBE_MIRROR:-}
    [ -n "$uri" ] || uri=$(apt-get indextargets --format '$(LABEL) $(REPO_URI)' 'Created-By: Packages' \
        | sed -n 's/^Debian //p' | head -n 1)
    printf '%s\n' "${uri:-http://deb.debian.org/debian}"
}

# Copies how the host's apt and TLS reach the network into a root.
copy_network_settings() {
    local root=$1
    apt-config dump | grep -E '^Acquire::(https?|ftp|Check-|Retries|ForceIPv)' > "$root/etc/apt/apt.conf.d/90host" || true
    printf 'Acquire::Languages "none";\nAPT::Install-Recommends "false";\n' >> "$root/etc/apt/apt.conf.d/90host"
    printf 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s %s main\n' "$(mirror)" $SUITE \
        > "$root/etc/apt/sources.list"
    # a root that a crash spoils is made anew
    echo force-unsafe-io > "$root/etc/dpkg/dpkg.cfg.d/90host"
    if [ -r /etc/ssl/certs/ca-certificates.crt ] && [ -d "$root/etc/ssl/certs" ]; then
        cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
    fi
}

# Runs a command in a root, in mounts of its own that vanish with it.
in_root() {
    local root=$1; shift
    unshare -m --propagation private bash -c '
        root=$1; shift
        mount -t proc proc "$root/proc"; mount -t sysfs -o ro sysfs "$root/sys"; mount --rbind /dev "$root/dev"
        cp /etc/resolv.conf "$root/etc/resolv.conf" 2>/dev/null
        for name in http_proxy https_proxy no_proxy; do [ -n "${!name:-}" ] && set -- "$name=${!name}" "$@"; done
        exec chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 \
            DEBIAN_FRONTEND=noninteractive SYSTEMD_OFFLINE=1 "$@"' _ "$root" "$@"
}

# in_system ROOT FOLDER COMMAND...: runs a command in a copy of ROOT that is a real root (pivot_root), as containers
# need it, with FOLDER at /mnt and namespaces that vanish with it. NET=no: without a network.
in_system() {
    local root=$1 folder=$2 namespaces=(-m -C -p -f --kill-child --propagation private); shift 2
    [ "${NET:-}" != no ] || namespaces+=(-n)
    ROOT=$root FOLDER=$folder unshare "${namespaces[@]}" bash -ec '
        cd "$FOLDER"
        mkdir -p .upper .work .root
        mount -t overlay overlay -o "lowerdir=$ROOT,upperdir=.upper,workdir=.work" .root
        mkdir -p .root/mnt .root/.old
        mount --bind . .root/mnt
        cd .root
        mount -t proc proc proc; mount -t sysfs sysfs sys; mount --rbind /dev dev
        mount -t tmpfs tmpfs run; mount -t tmpfs tmpfs tmp; mount -t cgroup2 cgroup2 sys/fs/cgroup
        [ "${NET:-}" != no ] || PATH=/usr/sbin:/sbin:$PATH ip link set lo up
        pivot_root . .old
        umount -l /.old
        cd /
        exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 "$@"' _ "$@"
}

# trixie_root NAME ARCHITECTURE [COMMAND...]: makes $CACHE/NAME-ARCHITECTURE once, as a copy of the
# bare system on which COMMAND was run, and prints its path. A changed COMMAND makes it anew.
trixie_root() {
    local name=$1 architecture=$2; shift 2
    local root=$CACHE/$name-$architecture
    mkdir -p "$CACHE"
    (
        flock 9
        local recipe; recipe=$(printf '%s\n' "$SUITE" "$BASE_PACKAGES" "$@")
        [ "$(cat "$root.recipe" 2>/dev/null)" = "$recipe" ] && exit 0
        say "making $root (once)"
        rm -rf "$root.recipe" "$root" "$root.part" # in this order: half a root has no recipe
        if [ "$name" = base ]; then
            debootstrap --arch="$architecture" --variant=minbase --include="$BASE_PACKAGES" \
                $SUITE "$root.part" "$(mirror)" > "$root.log" 2>&1 || { tail -n 20 "$root.log" >&2; exit 1; }
            copy_network_settings "$root.part"
            in_root "$root.part" apt-get update -qq >> "$root.log" 2>&1
        else
            flock -s 7 # nobody replaces the bare system while it is copied
            cp -a --reflink=auto "$CACHE/base-$architecture" "$root.part"
            exec 7>&-
            copy_network_settings "$root.part"
            in_root "$root.part" "$@" > "$root.log" 2>&1 || { tail -n 20 "$root.log" >&2; exit 1; }
        fi
        mv "$root.part" "$root"
        printf '%s\n' "$recipe" > "$root.recipe"
    ) 9> "$root.lock" 7>> "$CACHE/base-$architecture.lock" || { say "$root could not be made: see $root.log"; return 1; }
    printf '%s\n' "$root"
}

# wheels NAME ARCHITECTURE OPTION...: the folder in the cache with what debian/NAME.txt names
wheels() {
    local file=debian/$1.txt folder; shift
    folder=$CACHE/wheels-$1-$(sha256sum < "$file" | cut -c 1-12); shift
    if [ ! -d "$folder" ]; then
        python3 -m pip --version > /dev/null 2>&1 || need_host python3-pip
        say "fetching what $file names"
        rm -rf "$folder.part"
        python3 -m pip download --quiet --quiet --disable-pip-version-check --no-deps --only-binary :all: \
            --require-hashes -r "$file" "$@" --dest "$folder.part" || return
        mv "$folder.part" "$folder"
    fi
    printf '%s\n' "$folder"
}

base_root() { trixie_root base "$1"; }

# packages_root NAME ARCHITECTURE PACKAGES...: the bare system with packages
packages_root() {
    base_root "$2" > /dev/null && trixie_root "$1" "$2" apt-get install -y "${@:3}"
}

# test_root ARCHITECTURE DEPENDS: what the tests need is installed, what the package needs, and what
# /root/later names for the time after it, is only downloaded: apt installs it there without a network.
test_root() {
    base_root "$1" > /dev/null && trixie_root test "$1" sh -ec '
        depends=$1; shift
        later=$1; shift
        apt-get install -y "$@"
        systemctl disable mosquitto.service nats-server.service
        echo "$later" > /root/later
        apt-get install -y --download-only $later
        apt-get satisfy -y --download-only "$depends"' _ "$2" "${LATER_PACKAGES[*]}" "${TEST_PACKAGES[@]}"
}
