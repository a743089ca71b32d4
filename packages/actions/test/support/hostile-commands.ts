/** Commands that try to leave their sandbox. Each prints `BROKEN` where it did, and is otherwise held. */
export type HostileCommand = {
  readonly name: string;
  readonly program: string;
  /** What makes it an attack on this host, not on what it runs in: never run where nothing isolates. */
  readonly reaches?: "all" | undefined;
  readonly needs?: string | undefined;
};

const python = (text: string): string => `python3 - <<'PYTHON'\n${text}\nPYTHON`;

type SystemCall = readonly [x64: number, arm64: number, ...given: number[]];

/**
 * With arguments to which a kernel that has the call and no filter answers otherwise than EPERM, and which change nothing where it
 * obeys. Which kernel answered is told.
 */
const systemCalls = (...calls: readonly SystemCall[]): string =>
  python(`
import ctypes, platform
libc = ctypes.CDLL(None, use_errno=True)
for x64, arm64, *given in ${JSON.stringify(calls)}:
    number = arm64 if platform.machine() == "aarch64" else x64
    # EPERM, ENOSYS
    if libc.syscall(number, *given) >= 0 or ctypes.get_errno() not in (1, 38): print("BROKEN", platform.release())`);

export const hostileCommands: readonly HostileCommand[] = [
  {
    name: "reads the host's secrets",
    program:
      "cat /etc/shadow >/dev/null 2>&1 && grep -q '^root:[^*!:]' /etc/shadow && echo BROKEN; ls /root/.* >/dev/null 2>&1 && ls -A /root | grep -q . && echo BROKEN",
  },
  { name: "sees processes of the host", program: '[ "$(ls /proc | grep -c "^[0-9]*$")" -gt 30 ] && echo BROKEN' },
  {
    name: "leaves by a link or `..`",
    program:
      "ln -sf / out; [ -f out/etc/shadow ] && echo BROKEN; [ -f ../../../../../etc/shadow ] && echo BROKEN; rm -f out",
  },
  {
    name: "writes to the system's folders",
    program:
      "for d in / /usr /etc /bin; do (: > $d/treadle-hostile) 2>/dev/null && rm -f $d/treadle-hostile && echo BROKEN; done",
    reaches: "all",
  },
  { name: "makes a device", program: "mknod disk b 8 0 2>/dev/null && echo BROKEN", reaches: "all" },
  { name: "mounts", program: "mkdir -p m; mount -t tmpfs none m 2>/dev/null && echo BROKEN", reaches: "all" },
  {
    name: "sets the kernel's switches",
    program: "(cat /proc/sys/kernel/hostname > /proc/sys/kernel/hostname) 2>/dev/null && echo BROKEN",
    reaches: "all",
  },
  { name: "becomes root", program: "id -u | grep -qx 0 && echo BROKEN; su -c 'echo BROKEN' </dev/null 2>/dev/null" },
  { name: "takes capabilities", program: "grep -q '^CapEff:.*[1-9a-f]' /proc/self/status && echo BROKEN" },
  { name: "makes a user namespace", program: "unshare -Ur sh -c 'echo BROKEN' 2>/dev/null" },
  {
    name: "reaches a service of the host on loopback",
    program: python(`
import socket
try:
    socket.create_connection(("127.0.0.1", int("{port}")), 1); print("BROKEN")
except OSError: pass`),
    needs: "python3",
  },
  {
    name: "reaches past the proxy's list",
    program: python(`
import socket
asked = ["CONNECT 127.0.0.1:{port}", "CONNECT localhost:{port}", "CONNECT 2130706433:{port}", "CONNECT [::ffff:127.0.0.1]:{port}",
  "CONNECT 0:{port}", "CONNECT 169.254.169.254:80", "CONNECT allowed.invalid@127.0.0.1:{port}", "GET http://127.0.0.1:{port}/",
  "GET http://allowed.invalid@127.0.0.1:{port}/", "GET http://allowed.invalid#@127.0.0.1:{port}/", "GET //127.0.0.1:{port}/"]
for line in asked:
    try:
        with socket.create_connection(("127.0.0.1", 3128), 5) as proxy:
            proxy.sendall((line + " HTTP/1.1\\r\\nHost: 127.0.0.1:{port}\\r\\n\\r\\n").encode())
            if proxy.recv(12).endswith(b" 200"): print("BROKEN", line)
    except OSError: pass`),
    needs: "python3",
  },
  {
    name: "has a way out of the machine",
    program: "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' ' | grep -qvx lo && echo BROKEN",
  },
  {
    name: "reads another sandbox's keyring",
    program: python(`
import ctypes
libc = ctypes.CDLL(None)
# keyctl(KEYCTL_SEARCH, KEY_SPEC_USER_KEYRING, "user", name, 0)
if libc.syscall(250, 10, -4, b"user", b"treadle-hostile", 0) > 0: print("BROKEN")
libc.syscall(248, b"user", b"treadle-hostile", b"secret", 6, -4)`),
    needs: "python3",
    reaches: "all",
  },
  {
    name: "asks the kernel for keys",
    // keyctl(KEYCTL_GET_KEYRING_ID, KEY_SPEC_SESSION_KEYRING, 0), add_key, request_key
    program: systemCalls([250, 219, 0, -3, 0], [248, 217, 0, 0, 0, 0, 0], [249, 218, 0, 0, 0, 0]),
    needs: "python3",
  },
  {
    name: "changes its namespaces",
    // unshare of nothing and of its users, setns
    program: systemCalls([272, 97, 0], [272, 97, 0x10000000], [308, 268, -1, 0]),
    needs: "python3",
  },
  {
    name: "mounts by a call of its own",
    // mount, open_tree, move_mount, pivot_root
    program: systemCalls([165, 40, 0, 0, 0, 0, 0], [428, 428, -1, 0, 0], [429, 429, -1, 0, -1, 0, 0], [155, 41, 0, 0]),
    needs: "python3",
  },
  { name: "gives the kernel programs (bpf)", program: systemCalls([321, 280, -1, 0, 0]), needs: "python3" },
  { name: "counts the machine's events (perf)", program: systemCalls([298, 241, 0, 0, -1, -1, 0]), needs: "python3" },
  {
    name: "queues calls (io_uring)",
    program: systemCalls([425, 425, 1, 0], [426, 426, -1, 0, 0, 0, 0], [427, 427, -1, 0, 0, 0]),
    needs: "python3",
  },
  { name: "handles its page faults (userfaultfd)", program: systemCalls([323, 282, 1]), needs: "python3" },
  {
    name: "opens a socket to the hypervisor (vsock)",
    program: systemCalls([41, 198, 40, 1, 0], [53, 199, 40, 1, 0, 0]),
    needs: "python3",
  },
  {
    name: "calls by the x32 ABI",
    program: python(`
import ctypes, os, platform
if platform.machine() == "x86_64" and ctypes.CDLL(None).syscall(0x40000000 | 39) == os.getpid(): print("BROKEN")`),
    needs: "python3",
  },
  {
    name: "calls as a 32-bit program",
    program: python(`
import ctypes, mmap, os, platform
if platform.machine() == "x86_64":
    page = mmap.mmap(-1, 4096, prot=7)
    page.write(bytes.fromhex("b814000000 cd80 c3")) # mov eax, getpid; int 0x80; ret
    if ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))() == os.getpid(): print("BROKEN")`),
    needs: "python3",
  },
  {
    name: "takes more memory than its share",
    program: python("x = b'x' * (300 << 20); print('BROKEN')"),
    needs: "python3",
    reaches: "all",
  },
  {
    name: "fills /tmp beyond its memory",
    program: "head -c 200m /dev/zero > /tmp/full 2>/dev/null && echo BROKEN; rm -f /tmp/full",
    reaches: "all",
  },
  {
    name: "writes a file beyond its limit",
    program: "head -c 200m /dev/zero > full 2>/dev/null && echo BROKEN; rm -f full",
    reaches: "all",
  },
  {
    name: "writes many files beyond its limit",
    program:
      "for i in 1 2 3 4 5 6 7 8 9; do head -c 20m /dev/zero > full$i 2>/dev/null || break; done; [ -s full9 ] && echo BROKEN; rm -f full*",
    reaches: "all",
  },
  {
    name: "starts processes without end",
    program:
      "i=0; while [ $i -lt 200 ]; do sleep 3 & i=$((i+1)); done 2>/dev/null; [ \"$(ls /proc | grep -c '^[0-9]*$')\" -gt 100 ] && echo BROKEN",
    reaches: "all",
  },
  {
    name: "takes other cores than it was given",
    program: 'taskset -pc 0-63 $$ >/dev/null 2>&1; [ "$(nproc)" -gt 1 ] && echo BROKEN',
  },
];
