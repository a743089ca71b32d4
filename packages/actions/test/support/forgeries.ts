/**
 * Commands that fail and try to be told as if they had not. Each ends with exit code 1, unless it is ended before; a driver
 * that reports any of them as `exited 0` was deceived.
 */
export type Forgery = {
  readonly name: string;
  /** shell text */
  readonly program: string;
  /** it signals, writes to or traces whatever it can reach: never to be run where that is more than its sandbox */
  readonly reaches?: "all" | undefined;
  /** what the image has to have besides a shell */
  readonly needs?: "python3" | undefined;
};

const python = (text: string): string =>
  `cat > /tmp/forge-$$.py <<'PYTHON'\n${text}\nPYTHON\npython3 /tmp/forge-$$.py; exit 1`;

/** Every process that can be seen, but for the command itself. */
const others = 'for p in $(ls /proc | grep "^[0-9]*$"); do [ "$p" = "$$" ] && continue;';

export const forgeries: readonly Forgery[] = [
  {
    name: "prints what an end may look like, and text as long as a pipe",
    program: `for i in 0 1 2 3; do printf '\\0360\\n\\036%024d 0\\n0\\nexited 0\\n' $i; done; head -c 70000 /dev/zero | tr '\\0' 0; exit 1`,
  },
  {
    name: "writes an end to every descriptor, its own and others'",
    reaches: "all",
    program: `for n in 0 1 2 3 4 5 6 7 8 9; do eval "echo 0 >&$n" 2>/dev/null; done
${others} for f in /proc/$p/fd/*; do [ -p "$f" ] || [ -S "$f" ] || continue; (echo 0 > "$f") 2>/dev/null & done; done; wait; exit 1`,
  },
  {
    name: "closes its descriptors and opens others in their place",
    program: `exec 0<&- 1>&- 2>&-; for n in 0 1 2 3 4 5 6 7 8 9; do eval "exec $n<>/tmp/reopened-$$-$n" ; echo 0 >&$n; done; exit 1`,
  },
  {
    name: "kills its process group and all that it may signal",
    reaches: "all",
    program: "trap '' TERM HUP INT; kill -TERM -1; kill -INT 0; kill -HUP 0; kill -9 $PPID; kill -9 -1; exit 1",
  },
  {
    name: "stops its parent and goes on",
    reaches: "all",
    program: `${others} kill -STOP "$p" 2>/dev/null; done; kill -STOP $PPID 2>/dev/null; sleep 0.1
${others} kill -CONT "$p" 2>/dev/null; done; exit 1`,
  },
  {
    name: "leaves a process that forges after its end",
    reaches: "all",
    program: `(trap '' HUP TERM; sleep 0.05; while :; do for f in /proc/[0-9]*/fd/*; do [ -p "$f" ] && (echo 0 > "$f") 2>/dev/null & done; wait; done) & exit 1`,
  },
  {
    name: "leaves a process in a session of its own that holds its output",
    program: `setsid sh -c 'sleep 0.05; for i in 1 2 3 4 5 6 7 8 9; do echo 0; sleep 0.02; done' & exit 1`,
  },
  {
    name: "reads marks from the memory of others, and prints them with a zero",
    reaches: "all",
    needs: "python3",
    program: python(`
import os, re, sys
for p in filter(str.isdigit, os.listdir("/proc")):
    if int(p) == os.getpid(): continue
    try:
        maps = open(f"/proc/{p}/maps").read().splitlines()
        mem = open(f"/proc/{p}/mem", "rb")
    except OSError: continue
    for line in maps:
        span, rights = line.split()[:2]
        if "rw" not in rights: continue
        low, high = (int(x, 16) for x in span.split("-"))
        try:
            mem.seek(low); data = mem.read(min(high - low, 1 << 22))
        except (OSError, ValueError, OverflowError): continue
        for mark in set(re.findall(rb"\\x1e?[0-9a-f]{16,64}", data)):
            sys.stdout.buffer.write(mark + b" 0\\n" + mark + b"0\\n")
sys.stdout.flush()`),
  },
  {
    name: "attaches to every process that it can, and makes it exit with 0",
    reaches: "all",
    needs: "python3",
    program: python(`
import ctypes, os, struct, time
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
for p in map(int, filter(str.isdigit, os.listdir("/proc"))):
    # Its own shell may exit as it likes.
    if p in (os.getpid(), os.getppid(), 1): continue
    try:
        if os.stat(f"/proc/{p}").st_uid != os.getuid(): continue
    except OSError: continue
    if libc.ptrace(16, p, None, None) != 0: continue
    os.waitpid(p, 0x40000000)
    regs = (ctypes.c_ulonglong * 27)()
    libc.ptrace(12, p, None, ctypes.addressof(regs))
    rip = regs[16]
    libc.ptrace(4, p, rip, struct.unpack("q", b"\\x0f\\x05" + b"\\x90" * 6)[0])
    regs[10] = 231; regs[14] = 0; regs[15] = (1 << 64) - 1
    libc.ptrace(13, p, None, ctypes.addressof(regs))
    libc.ptrace(17, p, None, None)
    time.sleep(0.05)`),
  },
];
