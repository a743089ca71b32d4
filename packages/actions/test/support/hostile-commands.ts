/** Commands that try to leave their sandbox. Each prints `BROKEN` where it did, and is otherwise held. */
export type HostileCommand = {
  readonly name: string;
  readonly program: string;
  /** What makes it an attack on this host, not on what it runs in: never run where nothing isolates. */
  readonly reaches?: "all" | undefined;
  readonly needs?: string | undefined;
};

const python = (text: string): string => `python3 - <<'PYTHON'\n${text}\nPYTHON`;

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
      "ln -sf / out; [ -e out/etc/shadow ] && echo BROKEN; [ -e ../../../../../etc/shadow ] && echo BROKEN; rm -f out",
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
    name: "fills its working folder beyond its memory",
    program: "head -c 200m /dev/zero > full 2>/dev/null && echo BROKEN; rm -f full",
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
