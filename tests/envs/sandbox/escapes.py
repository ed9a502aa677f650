"""Programs that try to get out of the sandbox, to harm what is outside, or to use more than they may.

Each prints a line that begins with ``ESCAPED`` for whatever it achieved. ``OUTSIDE`` stands for a folder outside with a file
``secret``, ``VICTIM`` for the id of a process outside, ``PARENT`` for that of the process that uses the sandbox, ``PORT`` for a
port on which the latter listens.
"""

from collections.abc import Callable

import msgspec

from asyncrl.envs.sandbox.limits import Limits
from asyncrl.envs.sandbox.messages import Finished, Reason

HELPERS = """
import contextlib, ctypes, os, signal, socket, stat, struct, subprocess, sys, time
libc = ctypes.CDLL(None, use_errno=True)
SECRET = OUTSIDE + "/secret"
def attempt(name, action):
    try:
        result = action()
    except (OSError, MemoryError, ValueError) as error:
        print("refused", name, repr(error)[:80])
    else:
        print("ESCAPED", name, repr(result)[:80], flush=True)
def call(number, *arguments):
    result = libc.syscall(number, *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
def read(path):
    with open(path, "rb") as file:
        return file.read(16)
def write(path, mode="w"):
    with open(path, mode) as file:
        file.write("x")
"""
BELOW = """
folder, number = os.open(".", os.O_RDONLY), 0
for _ in range(40):
    os.mkdir("x" * 200, dir_fd=folder)
    folder = os.open("x" * 200, os.O_RDONLY, dir_fd=folder)
"""


def nothing_achieved(finished: Finished) -> bool:
    """The program ran to its end, and all that it tried was refused."""
    return finished.reason is Reason.EXITED and finished.exit_code == 0 and b"ESCAPED" not in finished.stdout


def ended_by(*reasons: Reason) -> Callable[[Finished], bool]:
    """The program was ended for one of these reasons, and had achieved nothing."""
    return lambda finished: finished.reason in reasons and b"ESCAPED" not in finished.stdout


def ended(finished: Finished) -> bool:
    """The program achieved nothing; how it ended does not matter."""
    return b"ESCAPED" not in finished.stdout


class Escape(msgspec.Struct, frozen=True):
    """An attempt to escape: a program, its limits, and whether what became of it is a containment.

    Attributes:
        only_uses_more: whether the program only uses more than it may, which no sandbox lets it.
    """

    name: str
    code: str
    contained: Callable[[Finished], bool] = nothing_achieved
    limits: Limits = Limits(wall_s=20.0, cpu_s=15.0)
    only_uses_more: bool = False


ESCAPES = (
    Escape(
        "network",
        """
attempt("tcp to this host", lambda: socket.create_connection(("127.0.0.1", PORT), 2))
attempt("tcp to another host", lambda: socket.create_connection(("1.1.1.1", 53), 2))
with contextlib.suppress(OSError):  # within its own network it may send; the test looks whether anything arrives
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", PORT))
attempt("raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
attempt("name", lambda: socket.getaddrinfo("example.org", 80))
attempt("packet", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
attempt("host of a virtual machine", lambda: socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM))
""",
    ),
    Escape(
        "every kind of socket",
        """
libc.socket.argtypes = [ctypes.c_int] * 3
for family in (socket.AF_INET, socket.AF_INET6):
    here = ("127.0.0.1" if family == socket.AF_INET else "::ffff:127.0.0.1", PORT)
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, 4, socket.SOCK_SEQPACKET, 6):
        for protocol in range(300):
            descriptor = libc.socket(family, kind, protocol)
            if descriptor < 0:
                continue
            with socket.socket(family, kind, protocol, descriptor) as connecting:
                connecting.settimeout(2)
                if kind == socket.SOCK_STREAM:
                    attempt(f"connecting {family} {protocol}", lambda: connecting.connect(here))
                else:
                    with contextlib.suppress(OSError):  # the test looks whether anything arrives
                        connecting.sendto(b"x", here)
            with socket.socket(family, kind, protocol) as fast:
                fast.settimeout(2)
                if kind == socket.SOCK_STREAM:
                    attempt(f"sending at once {family} {protocol}", lambda: fast.sendto(b"x", socket.MSG_FASTOPEN, here))
""",
    ),
    Escape(
        "reading files outside",
        """
for path in (SECRET, "/etc/shadow", "/etc/passwd", "/root/.bashrc", "/proc/self/root/etc/shadow", "../../../../../../etc/shadow"):
    attempt(path, lambda: read(path))
attempt("listing", lambda: os.listdir(OUTSIDE))
""",
    ),
    Escape(
        "writing files outside",
        """
for path in (OUTSIDE + "/new", "/etc/cron.d/new", "/usr/bin/new", "/new", sys.prefix + "/new"):
    attempt(path, lambda: write(path))
attempt("appending", lambda: write(SECRET, "a"))
attempt("truncating", lambda: os.truncate(SECRET, 0))
attempt("removing", lambda: os.unlink(SECRET))
attempt("renaming", lambda: os.rename(SECRET, "secret"))
attempt("making a folder", lambda: os.mkdir(OUTSIDE + "/folder"))
""",
    ),
    Escape(
        "changing what files outside are",
        """
for path in (SECRET, OUTSIDE):
    attempt("mode", lambda: os.chmod(path, 0o777))
    attempt("owner", lambda: os.chown(path, 1234, 1234))
    attempt("times", lambda: os.utime(path, (1, 1)))
    attempt("attribute", lambda: os.setxattr(path, "user.x", b"x"))
library = os.open(os.__file__, os.O_RDONLY)
def change(name, action):  # may be pretended, but nothing may change
    before = os.fstat(library)
    with contextlib.suppress(OSError):
        action()
    after = os.fstat(library)
    if (before.st_mode, before.st_uid) != (after.st_mode, after.st_uid):
        print("ESCAPED", name)
change("mode of an open file", lambda: os.fchmod(library, 0o777))
change("owner of an open file", lambda: os.fchown(library, 1234, 1234))
attempt("attribute of an open file", lambda: os.setxattr(library, "user.x", b"x"))
""",
    ),
    Escape(
        "watching who uses files outside",
        """
def watch(path, begin):
    if (watcher := begin()) < 0 or libc.inotify_add_watch(watcher, path.encode(), 0xFFF) < 0:
        raise OSError(ctypes.get_errno(), "watching")
for path in (SECRET, OUTSIDE, "/", os.__file__):
    attempt(path, lambda: watch(path, libc.inotify_init))
    attempt(path, lambda: watch(path, lambda: libc.inotify_init1(0)))
""",
    ),
    Escape(
        "symbolic links",
        """
os.symlink(SECRET, "link")
os.symlink(OUTSIDE, "folder")
os.symlink("/proc/1/root", "root")
attempt("reading", lambda: read("link"))
attempt("writing", lambda: write("link"))
attempt("reading below", lambda: read("folder/secret"))
attempt("writing below", lambda: write("folder/new"))
attempt("another root", lambda: read("root/etc/shadow"))
attempt("mode", lambda: os.chmod("link", 0o777))
""",
    ),
    Escape(
        "hard links",
        """
attempt("linking", lambda: os.link(SECRET, "hard"))
attempt("linking an open file", lambda: os.link("/usr/bin/env", "env"))
attempt("linking outwards", lambda: (write("mine"), os.link("mine", OUTSIDE + "/mine")))
""",
    ),
    Escape(
        "fork bomb",
        """
while True:
    try:
        os.fork()
    except OSError:
        time.sleep(0.01)
""",
        ended_by(Reason.PROCESSES, Reason.CPU_TIME, Reason.WALL_TIME),
        Limits(wall_s=3.0),
        only_uses_more=True,
    ),
    Escape(
        "threads without end",
        """
import threading
while True:
    threading.Thread(target=time.sleep, args=(100,), daemon=True).start()
""",
        ended_by(Reason.PROCESSES, Reason.EXITED),
        only_uses_more=True,
    ),
    Escape(
        "memory",
        """
for _ in range(8):
    if os.fork() == 0:
        try:
            kept = bytearray(200 << 20)
            kept[::4096] = b"x" * len(kept[::4096])
            time.sleep(60)
        except MemoryError:
            pass
        os._exit(0)
try:
    all_at_once = bytearray(4 << 30)
    print("ESCAPED")
except MemoryError:
    time.sleep(60)
""",
        lambda finished: ended(finished) and (finished.reason is not Reason.EXITED or finished.exit_code == 137),
        only_uses_more=True,
    ),
    Escape(
        "memory that no process has",
        """
def fill(number):
    file = call(number, b"x", 0)
    for _ in range(2000):
        os.write(file, bytes(1 << 20))
attempt("memory file", lambda: fill(MEMFD_CREATE))
attempt("shared memory", lambda: write("/dev/shm/x"))
attempt("segment", lambda: call(SHMGET, 0, 1 << 30, 0o1600))
""",
        ended,
    ),
    Escape(
        "killing the parent",
        """
def kill_own_parent():
    if os.getppid() <= 2:
        raise OSError("it is the first process of the sandbox")
    os.kill(os.getppid(), signal.SIGKILL)
attempt("parent", lambda: os.kill(PARENT, signal.SIGKILL))
attempt("own parent", kill_own_parent)
attempt("its limits", lambda: call(PRLIMIT, PARENT, 0, struct.pack("QQ", 0, 0), None))
attempt("its limits, read", lambda: call(PRLIMIT, PARENT, 0, None, ctypes.create_string_buffer(16)))
""",
    ),
    Escape(
        "priorities and processors of others",
        """
idle = struct.pack("IIQiIQQQ", 48, 5, 0, 0, 0, 0, 0, 0)
others = {"parent": PARENT, "victim": VICTIM}
if os.getppid() > 2:  # else it is the first process of the sandbox
    others["own parent"] = os.getppid()
for name, process in others.items():
    attempt(f"class of {name}", lambda: os.sched_setscheduler(process, os.SCHED_IDLE, os.sched_param(0)))
    attempt(f"parameter of {name}", lambda: os.sched_setparam(process, os.sched_param(0)))
    attempt(f"attributes of {name}", lambda: call(SCHED_SETATTR, process, idle, 0))
    attempt(f"processors of {name}", lambda: os.sched_setaffinity(process, {0}))
    attempt(f"priority of {name}", lambda: os.setpriority(os.PRIO_PROCESS, process, 19))
    attempt(f"priority of the group of {name}", lambda: os.setpriority(os.PRIO_PGRP, process, 19))
    attempt(f"priority of the disk of {name}", lambda: call(IOPRIO_SET, 1, process, 3 << 13))
    attempt(f"priority of the disk of the group of {name}", lambda: call(IOPRIO_SET, 2, process, 3 << 13))
    for file in ("autogroup", "oom_score_adj", "timerslack_ns"):
        attempt(f"{file} of {name}", lambda: write(f"/proc/{process}/{file}"))
attempt("priority of the user", lambda: os.setpriority(os.PRIO_USER, os.getuid(), 19))
attempt("priority of the disk of the user", lambda: call(IOPRIO_SET, 3, os.getuid(), 3 << 13))
for group in ("", "/cpu", "/cpuset", "/freezer", "/unified"):
    for file in ("cgroup.procs", "tasks", "cgroup.freeze", "cpu.weight", "cpu.shares", "freezer.state"):
        attempt(f"control group {group}/{file}", lambda: write(f"/sys/fs/cgroup{group}/{file}"))
""",
    ),
    Escape(
        "signals",
        """
import fcntl
F_SETSIG = 10
for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGKILL, 0):
    attempt("signal", lambda: os.kill(VICTIM, number))
    attempt("group", lambda: os.killpg(VICTIM, number))
def by_descriptor():
    signal.pidfd_send_signal(os.pidfd_open(VICTIM), signal.SIGKILL)
attempt("descriptor", by_descriptor)
attempt("queued", lambda: libc.sigqueue(VICTIM, 9, None) and call(-1))
def by_file():
    reading, writing = socket.socketpair()
    for command, value in ((F_SETSIG, signal.SIGKILL), (fcntl.F_SETOWN, VICTIM), (fcntl.F_SETFL, os.O_ASYNC)):
        fcntl.fcntl(reading, command, value)
    writing.send(b"x")
with contextlib.suppress(OSError):  # the test looks whether the victim lives
    by_file()
print("done", flush=True)
os.kill(-1, signal.SIGKILL)
""",
        ended,
    ),
    Escape(
        "processes of others",
        """
for name in ("environ", "mem", "maps", "cmdline", "root/etc/shadow", "cwd", "fd/0"):
    attempt(name, lambda: read(f"/proc/{PARENT}/{name}"))
attempt("process 1", lambda: read("/proc/1/environ"))
attempt("kernel", lambda: read("/proc/kcore"))
attempt("setting", lambda: write("/proc/sys/kernel/core_pattern"))
attempt("trigger", lambda: write("/proc/sysrq-trigger"))
""",
    ),
    Escape(
        "tracing",
        """
for process in (PARENT, VICTIM):
    attempt("attach", lambda: call(PTRACE, 16, process, 0, 0))
    attempt("seize", lambda: call(PTRACE, 0x4206, process, 0, 0))
    buffer = ctypes.create_string_buffer(16)
    attempt("reading memory", lambda: call(PROCESS_VM_READV, process, buffer, 1, buffer, 1, 0))
    attempt("taking a file", lambda: call(PIDFD_GETFD, os.pidfd_open(process), 0, 0))
    attempt("comparing", lambda: call(KCMP, process, os.getpid(), 0, 0, 0))
    attempt("moving its memory", lambda: call(MIGRATE_PAGES, process, 8, struct.pack("Q", 1), struct.pack("Q", 1)))
    attempt("moving its pages", lambda: call(MOVE_PAGES, process, 0, None, None, None, 0))
    attempt("paging it out", lambda: call(PROCESS_MADVISE, os.pidfd_open(process), struct.pack("QQ", 0, 4096), 1, 21, 0))
""",
    ),
    Escape("long sleep", "time.sleep(1000)", ended_by(Reason.WALL_TIME), Limits(wall_s=0.5), only_uses_more=True),
    Escape(
        "busy for ever",
        """
for _ in range(3):
    os.fork()
while True:
    pass
""",
        ended_by(Reason.CPU_TIME, Reason.WALL_TIME),
        Limits(wall_s=5.0, cpu_s=0.5),
        only_uses_more=True,
    ),
    Escape(
        "a daemon that outlives",
        """
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            for number in (0, 1, 2):
                os.close(number)
            while True:
                time.sleep(1)
        os._exit(0)
""",
        only_uses_more=True,
    ),
    Escape(
        "output without end",
        """
while True:
    os.write(1, b"x" * 65536)
    os.write(2, b"x" * 65536)
""",
        lambda finished: ended_by(Reason.OUTPUT)(finished) and len(finished.stdout) <= 64 << 10 >= len(finished.stderr),
        only_uses_more=True,
    ),
    Escape(
        "a full disk",
        """
number = 0
while True:
    number += 1
    try:
        with open(f"file{number}", "wb") as file:
            for _ in range(8):
                file.write(bytes(1 << 20))
    except OSError:
        time.sleep(0.01)
""",
        ended_by(Reason.FOLDER),
        Limits(wall_s=20.0, cpu_s=15.0, folder_mb=64),
        only_uses_more=True,
    ),
    Escape(
        "small files without end",
        """
number = 0
while True:
    number += 1
    open(f"file{number}", "w").close()
""",
        ended_by(Reason.FOLDER),
        Limits(wall_s=20.0, cpu_s=15.0, folder_mb=4),
        only_uses_more=True,
    ),
    Escape(
        "deleted files that stay open",
        """
kept = []
while True:
    file = open("file", "wb", buffering=0)
    os.unlink("file")
    file.write(bytes(4 << 20))
    kept.append(file)
    time.sleep(0.01)
""",
        ended_by(Reason.FOLDER),
        Limits(wall_s=20.0, cpu_s=15.0, folder_mb=64),
        only_uses_more=True,
    ),
    Escape(
        "a full disk below a path that is too long",
        BELOW
        + """
while True:
    number += 1
    file = os.open(f"file{number}", os.O_CREAT | os.O_WRONLY, dir_fd=folder)
    for _ in range(8):
        os.write(file, bytes(1 << 20))
    os.close(file)
    time.sleep(0.01)
""",
        ended_by(Reason.FOLDER, Reason.EXITED),
        Limits(wall_s=20.0, cpu_s=15.0, folder_mb=64),
        only_uses_more=True,
    ),
    Escape(
        "a full disk in a folder that nobody may look into",
        """
os.mkdir("closed")
number = 0
while True:
    number += 1
    os.chmod("closed", 0o700)
    with open(f"closed/file{number}", "wb") as file:
        os.chmod("closed", 0)
        for _ in range(8):
            file.write(bytes(1 << 20))
    time.sleep(0.01)
""",
        ended_by(Reason.FOLDER),
        Limits(wall_s=20.0, cpu_s=15.0, folder_mb=64),
        only_uses_more=True,
    ),
    Escape(
        "a file that is too large",
        """
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
def grow():
    with open("large", "wb") as file:
        os.posix_fallocate(file.fileno(), 0, 2 << 20)
def lay():
    os.truncate("large", 2 << 20)
attempt("reserving", grow)
attempt("a sparse one", lay)
""",
        nothing_achieved,
        Limits(wall_s=20.0, cpu_s=15.0, file_mb=1),
        only_uses_more=True,
    ),
    Escape(
        "room that no limit bounds",
        """
file = os.open("reserved", os.O_CREAT | os.O_WRONLY)
attempt("reserving beyond the end of a file", lambda: call(FALLOCATE, file, 1, 0, 2 << 20))
attempt("semaphores", lambda: call(SEMGET, 0, 1, 0o1600))
attempt("a queue of messages", lambda: call(MSGGET, 0, 0o1600))
""",
        nothing_achieved,
        Limits(wall_s=20.0, cpu_s=15.0, file_mb=1),
    ),
    Escape(
        "files that were left open",
        """
for number in range(3, 256):
    try:
        kind = os.fstat(number).st_mode
    except OSError:
        continue
    if not stat.S_ISREG(kind) or os.pread(number, 6, 0) == b"s3cret":
        print("ESCAPED", number)
""",
    ),
    Escape(
        "sockets in files and in memory",
        """
attempt("file", lambda: socket.socket(socket.AF_UNIX).connect(OUTSIDE + "/socket"))
attempt("abstract", lambda: socket.socket(socket.AF_UNIX).connect("\\0" + OUTSIDE))
attempt("datagram", lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b"x", OUTSIDE + "/socket"))
attempt("new one outside", lambda: socket.socket(socket.AF_UNIX).bind(OUTSIDE + "/mine"))
""",
    ),
    Escape(
        "system calls",
        """
blank = ctypes.create_string_buffer(256)
for name, number, arguments in SYSTEM_CALLS:
    attempt(name, lambda: call(number, *[blank if each is None else each for each in arguments]))
attempt("user namespace", lambda: call(CLONE, 0x10000000 | 17, 0, 0, 0, 0) == 0 and os._exit(0))
def mount():
    if subprocess.run(["mount", "-t", "tmpfs", "none", "."], capture_output=True).returncode:
        raise OSError("it failed")
attempt("mount by program", mount)
""",
    ),
    Escape(
        "folders for everybody",
        """
for folder in ("/tmp", "/dev/shm", "/var/tmp", "/run", "/dev/mqueue"):
    attempt(folder, lambda: write(f"{folder}/of-the-sandbox-{os.getpid()}"))
""",
    ),
    Escape(
        "environment variables",
        """
for name, value in os.environ.items():
    if "s3cret" in value or "SECRET" in name:
        print("ESCAPED", name)
attempt("of the parent", lambda: read(f"/proc/{os.getppid()}/environ"))
""",
    ),
    Escape(
        "devices",
        """
for name in ("mem", "kmsg", "kvm", "fuse", "vda", "sda", "nvme0n1", "loop-control", "net/tun", "vhost-vsock", "nvidia0"):
    attempt(name, lambda: read("/dev/" + name))
    attempt(name, lambda: write("/dev/" + name))
attempt("making a disk", lambda: (os.mknod("disk", 0o600 | stat.S_IFBLK, os.makedev(254, 0)), read("disk")))
attempt("making a memory", lambda: (os.mknod("memory", 0o600 | stat.S_IFCHR, os.makedev(1, 1)), read("memory")))
attempt("typing on the terminal", lambda: __import__("fcntl").ioctl(os.open("/dev/tty", os.O_RDWR), 0x5412, b"x"))
""",
    ),
    Escape(
        "more rights",
        """
attempt("clock", lambda: time.clock_settime(time.CLOCK_REALTIME, time.time()))
attempt("host name", lambda: socket.sethostname("x"))
attempt("priority", lambda: os.setpriority(os.PRIO_PROCESS, 0, -10))
attempt("real time", lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)))
attempt("limit", lambda: __import__("resource").setrlimit(1, (-1, -1)))
attempt("root folder", lambda: os.chroot("."))
attempt("owner", lambda: (write("file"), os.chown("file", 1234, 1234)))
""",
    ),
)
