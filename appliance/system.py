"""The operating system: atomic files, locks, text for messages, /proc.

write_whole, replacing, sync_folder   files that survive a power cut completely or not at all
writing, require_writable, user_folder the same for files that a user named
lock, acting_as_owner                 a file that one process holds; root in another user's folder
find_credential, read_secret          secrets from systemd or a file
trusted_context, explain_wrong_time   TLS, and a certificate that the clock refuses
BackgroundTask                        a call that may hang, in a thread
Closing                               closed at the end of a `with` block
call_in, first                        loops and tasks of asyncio
json_object                           JSON from outside
shorten, legible, one_line            text from outside, safe for a message
holders                               processes that have a device open
read_or_empty, boot_id ...            readings of the kernel
"""

import ctypes
import fcntl
import functools
import io
import json
import math
import os
import platform
import re
import secrets
import stat
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from appliance.errors import ConfigError

if TYPE_CHECKING:
    import asyncio
    import ssl

MODEL = "proc/device-tree/model"
THROTTLED = "sys/devices/platform/soc*/*firmware/get_throttled"
GROWTH_MB = 400.0
"""Enough for a full spool's bookkeeping, 60 windows in memory and the publisher's queue."""
NOW = {0: "low voltage", 1: "capped clock", 2: "throttled", 3: "near its temperature limit"}
"""Bits of get_throttled (Raspberry Pi documentation, vcgencmd)."""
CAP_DAC_READ_SEARCH = 2
"""Its bit; capabilities(7)."""
SECRET_AT_MOST = 4096
"""Bytes; a longer file holds no password."""


def sync_folder(folder: Path) -> None:
    """Make changes of names in `folder` survive a power cut. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def replacing(file: Path, mode: int | None = None) -> Iterator[Path]:
    """Yield an empty draft in `file`'s folder, which replaces `file` if the block ends well.

    At any time `file` is completely the old or the new one, and the new one is on the disk when
    this returns. If the block raises, the draft is deleted. A kill or a power cut may leave it: a
    hidden file whose name ends in .draft. `mode`: exact permissions from the beginning; None: by
    the umask. Raises OSError.
    """
    draft = file.with_name(f".{file.name[:32]}.{secrets.token_hex(4)}.draft")  # 255 bytes at most
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    descriptor = os.open(draft, flags, 0o666 if mode is None else mode)
    try:
        if mode is not None:
            os.fchmod(descriptor, mode)
        yield draft
        os.fsync(descriptor)
        draft.rename(file)
    except BaseException:
        with suppress(OSError):
            draft.unlink()
        raise
    finally:
        os.close(descriptor)
    sync_folder(file.parent)


def write_whole(file: Path, content: bytes | str, mode: int | None = None) -> os.stat_result:
    """Write the file completely or not at all, as `replacing` does, and return its stat.

    Text is written as UTF-8. Raises OSError.
    """
    with replacing(file, mode) as draft:
        draft.write_bytes(content.encode() if isinstance(content, str) else content)
        return draft.stat()


@contextmanager
def writing(file: Path, mode: int | None = None) -> Iterator[Path]:
    """Yield the path to write for `file`, which a user named.

    It is a draft, as in `replacing`, of the file that a link leads to; or `file` itself if that is
    no regular file (a device, a pipe). Raises OSError.
    """
    try:
        regular = stat.S_ISREG(file.stat().st_mode)
    except FileNotFoundError:
        regular = True
    if not regular:
        yield file
        return
    with replacing(Path(os.path.realpath(file)), mode) as draft:
        yield draft


def lock(
    file: Path,
    *,
    shared: bool = False,
    wait: bool = False,
    flags: int = os.O_RDWR | os.O_CREAT,
    mode: int = 0o600,
) -> io.FileIO:
    """Return the open file, locked (flock) until it is closed or the process ends.

    A file that the last holder deleted is opened again. `shared`: other shared holders are allowed.
    `wait`: wait until it is free; otherwise raise BlockingIOError. Raises OSError; without O_CREAT
    in `flags` FileNotFoundError.
    """
    how = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB)
    while True:
        stream = io.FileIO(os.open(file, flags | os.O_CLOEXEC, mode), "r+")
        try:
            fcntl.flock(stream, how)
            with suppress(FileNotFoundError):
                if os.path.samestat(file.stat(), os.fstat(stream.fileno())):
                    return stream
        except BaseException:
            stream.close()
            raise
        stream.close()


@contextmanager
def acting_as_owner(folder: Path) -> Iterator[None]:
    """Let root write only what the owner of `folder` may write: it may contain that owner's links.

    Root can still read every file. Does nothing for other users, and if root owns `folder` or it
    does not exist. Raises OSError.
    """
    owner = None
    with suppress(OSError):
        owner = folder.stat()
    if os.geteuid() or not owner or not owner.st_uid:
        yield
        return
    groups, group = os.getgroups(), os.getegid()
    os.setgroups([])
    os.setegid(owner.st_gid)
    os.seteuid(owner.st_uid)
    try:
        _read_everything()
        yield
    finally:
        os.seteuid(0)
        os.setegid(group)
        os.setgroups(groups)


def _read_everything() -> None:
    """Make CAP_DAC_READ_SEARCH of capabilities(7) effective for this thread, if it is permitted.

    The structures are those of capget(2), version 3: a header, and effective, permitted and
    inheritable bits, in two times 32.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    data = (ctypes.c_uint32 * 6)()
    if libc.capget(header, data) == 0:
        data[0] |= data[1] & 1 << CAP_DAC_READ_SEARCH
        libc.capset(header, data)


def find_credential(name: str) -> Path | None:
    """Return the path of a systemd credential, if there is one."""
    folder = os.environ.get("CREDENTIALS_DIRECTORY")
    path = Path(folder) / name if folder else None
    return path if path and path.exists() else None


def user_folder(variable: str, below_home: str) -> Path:
    """Return this program's folder in the user's home (XDG Base Directory Specification 0.8)."""
    given = Path(os.environ.get(variable, ""))
    base = given if given.is_absolute() else Path("~").expanduser() / below_home
    return base / "roomscribe"


def require_writable(file: Path, fix: str) -> None:
    """Raise ConfigError, which ends in `fix`, before anything was begun in vain: the user may not
    write the configuration `file`, or not beside it."""
    there = file if file.exists() else file.parent
    if not os.access(there, os.W_OK) or not os.access(file.parent, os.W_OK):
        found = "a file that you may not write" if there.exists() else "no such folder"
        raise ConfigError(
            f"{file}: expected a configuration that you may write, found {found}; {fix}, "
            "or name another with --config"
        )


def read_secret(file: str, credential: str, key: str, what: str) -> str | None:
    """Return the only line of `file`, or of the systemd credential, or None without both.

    `key` names the file in messages, `what` its content; no message shows the secret. Raises
    ConfigError for a file that cannot be read, is empty, or has several lines.
    """
    path = Path(file) if file else find_credential(credential)
    if path is None:
        return None
    key = key if file else "systemd credential"
    word = what.rpartition(" ")[2]
    fix = f"write the {word} into it, readable for this user alone, or leave the key out"
    try:
        number = os.open(path.expanduser(), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(number, "rb") as opened:
            if not stat.S_ISREG(os.fstat(number).st_mode):  # a pipe would be waited for
                raise OSError("no plain file")
            text = opened.read(SECRET_AT_MOST + 1).decode("utf-8-sig").rstrip("\r\n")
    except (OSError, RuntimeError, UnicodeDecodeError) as error:
        no_text = isinstance(error, UnicodeDecodeError)
        found = "no UTF-8 text" if no_text else getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"{key}: expected a file holding {what}, found {path}: {found}; {fix}"
        ) from (None if no_text else error)
    if len(text) > SECRET_AT_MOST or "\n" in text:
        raise ConfigError(f"{key}: expected one line in {path}, found more; {fix}")
    if not text:
        raise ConfigError(f"{key}: expected {what} in {path}, found it empty; {fix}")
    return text


def trusted_context(ca_file: str, key: str, fix: str) -> "ssl.SSLContext":
    """Return the TLS context (TLS 1.2 or newer, certificate and host name checked) for a server of
    the authority in `ca_file`; "": of one that the system knows.

    The file is read at every call, so the next connection uses a renewed one. `key` is its setting.
    Raises ConfigError, which ends in `fix`.
    """
    import ssl

    try:
        secure = ssl.create_default_context(cafile=Path(ca_file).expanduser() if ca_file else None)
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: ~ of an unknown user
        raise ConfigError(
            f"{key}: expected a certificate authority (PEM) that this user may read, found "
            f"{ca_file}: {shorten(tls_reason(error), 120)}; {fix}"
        ) from error
    secure.minimum_version = ssl.TLSVersion.TLSv1_2
    return secure


def tls_reason(error: Exception) -> str:
    """Return OpenSSL's or the system's reason for an error, without its numbers."""
    reason = getattr(error, "reason", None)
    if isinstance(reason, str):
        return reason.replace("_", " ").lower()
    return getattr(error, "strerror", None) or str(error)


_WRONG_TIME = {9: "is not valid yet", 10: "has expired"}
"""OpenSSL's numbers of verification errors that a wrong clock can cause."""


def explain_wrong_time(error: BaseException | None) -> str:
    """Return what to do if a certificate is refused for its dates, which a wrong clock can cause;
    "" for any other error."""
    what = _WRONG_TIME.get(getattr(error, "verify_code", 0), "")
    if not what:
        return ""
    return (
        f"its certificate {what} by this machine's clock "
        f"({time.strftime('%Y-%m-%d %H:%M %Z')}). If that is wrong, set the clock "
        "(`timedatectl`); if it is right, the server needs another certificate"
    )


class BackgroundTask(threading.Thread):
    """A call that may take long or hang, in a thread that the end of the process does not wait for.

    Once the thread has ended, `outcome` is what the call returned, or `error` what it raised.
    """

    def __init__(self, work: Callable[[], Any], name: str) -> None:
        """Start the thread."""
        super().__init__(name=name, daemon=True)
        self.outcome: Any = None
        self.error: Exception | None = None
        self._work = work
        self.start()

    def run(self) -> None:
        """Make the call."""
        try:
            self.outcome = self._work()
        except Exception as error:
            self.error = error


class Closing:
    """What is closed at the end of a `with` block."""

    def close(self) -> None:
        """Free what it holds."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def call_in(
    loop: "asyncio.AbstractEventLoop | None", work: Callable[..., object], *of: Any
) -> None:
    """Call `work` in a loop of asyncio, unless there is none or it has ended. Any thread."""
    if loop:
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(work, *of)


async def first(*works: Awaitable[object]) -> None:
    """Run `works` until one of them ends, then cancel the others. Raises what they raised; of
    several errors, the last work's."""
    import asyncio

    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        found = await asyncio.gather(*tasks, return_exceptions=True)
    for one in reversed(found):
        if isinstance(one, Exception):
            raise one


def json_object(
    text: str | bytes, parse_constant: Callable[[str], object] | None = None
) -> dict[str, Any] | None:
    """Return the JSON object in a text; None if it is none. `parse_constant` is json.loads's."""
    try:
        found = json.loads(text, parse_constant=parse_constant)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def shorten(text: object, most: int = 60) -> str:
    """Return `text` as one printable line of at most `most` characters, "..." at a cut end.

    Line breaks and control characters are escaped as in Python's repr.
    """
    shown = "".join(
        letter if letter.isprintable() else repr(letter)[1:-1]
        for letter in legible(text)[: most + 1]
    )
    return shown if len(shown) <= most else shown[: most - 3] + "..."


def legible(text: object) -> str:
    """Return `text` with bytes of a file name that are not UTF-8 written as \\xe9.

    In Python such a byte is a lone surrogate (PEP 383), which JSON, MQTT and a log refuse.
    """
    return re.sub("[\udc80-\udcff]", lambda byte: f"\\x{ord(byte[0]) - 0xDC00:02x}", str(text))


def one_line(error: BaseException) -> str:
    """Return an exception's message on one line, or its type if it has none."""
    return " ".join(str(error).split()) or type(error).__name__


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that has a file open."""

    pid: int
    name: str

    def __str__(self) -> str:
        return f"{self.name} (process {self.pid})"


def holders(files: Iterable[Path], proc: Path = Path("/proc")) -> list[Holder]:
    """Return the other processes that have one of `files` open, as far as this user may see."""
    wanted = {str(path) for file in files for path in (file, file.resolve())}
    found = []
    for folder in proc.glob("[0-9]*") if wanted else ():
        with suppress(OSError):  # it has ended, or belongs to another user
            opened = (os.path.realpath(entry) for entry in (folder / "fd").iterdir())
            if not wanted.isdisjoint(opened) and int(folder.name) != os.getpid():
                name = read_or_empty(folder / "comm").strip() or "a program"
                found.append(Holder(int(folder.name), name))
    return sorted(found, key=lambda holder: holder.pid)


def read_or_empty(file: Path) -> str:
    """Return the text of a small file, such as one of the kernel; "" if it cannot be read."""
    with suppress(OSError):
        return file.read_text(encoding="utf-8", errors="replace")
    return ""


@functools.cache
def boot_id() -> str:
    """Return the kernel's id of this boot; empty if it cannot be read."""
    return read_or_empty(Path("/proc/sys/kernel/random/boot_id")).strip()


def boot_clock_s() -> float:
    """Return the seconds since the machine started, including suspended time; setting the clock
    does not change them."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def machine(root: Path = Path("/")) -> str:
    """Return the board's name, such as `Raspberry Pi 5 Model B Rev 1.0`; empty if unknown."""
    return read_or_empty(root / MODEL).strip("\0 \n")[:64]


def lacks_vnni(root: Path = Path("/"), architecture: str = platform.machine()) -> bool:
    """Return True for an x86 processor without VNNI (before about 2020, many virtual machines):
    its sums of unsigned times signed 8-bit numbers saturate."""
    if architecture.lower() not in ("x86_64", "amd64", "i386", "i686"):
        return False
    return not re.search(r"\bavx(512)?_vnni\b", read_or_empty(root / "proc/cpuinfo"))


def multiplies_4_bits(root: Path = Path("/"), architecture: str = platform.machine()) -> bool:
    """Return whether onnxruntime has products of 4-bit numbers for this processor: AVX2, or ARM's
    dot product (not a Pi 4). Without, it computes float32's at each step."""
    flag = "asimddp" if architecture.lower() in ("aarch64", "arm64") else "avx2"
    return bool(re.search(rf"\b{flag}\b", read_or_empty(root / "proc/cpuinfo")))


def soc_temperature_c(root: Path = Path("/")) -> float | None:
    """Return the processor's temperature, if it can be read."""
    text = read_or_empty(root / "sys/class/thermal/thermal_zone0/temp").strip()
    return int(text) / 1000 if re.fullmatch(r"-?\d{1,7}", text) else None


def throttling(root: Path = Path("/")) -> tuple[str, ...] | None:
    """Return a Raspberry Pi's current limits; None if they cannot be read."""
    text = next((read_or_empty(file).strip() for file in root.glob(THROTTLED)), "")
    if not re.fullmatch(r"(0x)?[0-9a-fA-F]{1,8}", text):
        return None
    bits = int(text, 16)
    return tuple(name for bit, name in NOW.items() if bits >> bit & 1)


def resident_mb(root: Path = Path("/")) -> float:
    """Return this process's resident memory in megabytes (2**20); 0 if unknown."""
    pages = read_or_empty(root / "proc/self/statm").split()
    return int(pages[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20) if len(pages) > 1 else 0.0


def free_memory(root: Path = Path("/")) -> float:
    """Return the bytes that programs may still allocate, swap included; infinite if unknown."""
    found = dict(
        re.findall(r"^(\w+):\s+(\d+) kB", read_or_empty(root / "proc/meminfo"), re.MULTILINE)
    )
    if "MemAvailable" not in found:
        return math.inf
    return 1024.0 * (int(found["MemAvailable"]) + int(found.get("SwapFree", 0)))


def memory_ceiling_mb(root: Path = Path("/")) -> float:
    """Return the memory limit of the appliance once it is ready; above it, something leaks.

    GROWTH_MB more than now, but below 90 % of systemd's
    MemoryHigh=, where the kernel would slow the process down; at least a quarter of that growth, so
    that a small machine does not restart for ever.
    """
    now_mb, allowed_mb = resident_mb(root), math.inf
    if group := re.search(r"^0::/(.*)$", read_or_empty(root / "proc/self/cgroup"), re.MULTILINE):
        limit = read_or_empty(root / "sys/fs/cgroup" / group[1] / "memory.high").strip()
        allowed_mb = int(limit) / (1 << 20) if limit.isdigit() else math.inf
    return max(min(now_mb + GROWTH_MB, 0.9 * allowed_mb), now_mb + GROWTH_MB / 4)
