/** Processes that say of themselves what they like, and names of processes that are no more, or elsewhere. */
import { spawn } from "node:child_process";
import { once } from "node:events";
import { expect, onTestFinished, test } from "vitest";
import { foundInTurns, foundNow, has, isGone, ownName, variableOf } from "../../src/node/processes.ts";

/** Says that its environment has so many bytes, as any process may, without privileges. */
const liar = `
import ctypes, mmap, os, re, sys, time
size = int(sys.argv[1])
fields = re.sub(r"^.*\\) ", "", open("/proc/self/stat").read()).split()
stat = lambda n: int(fields[n - 3])
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.sbrk.restype = ctypes.c_void_p
reserved = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000
memory = libc.mmap(None, ctypes.c_size_t(size), mmap.PROT_READ | mmap.PROT_WRITE, reserved, -1, ctypes.c_long(0))
words = [stat(26), stat(27), stat(45), stat(46), stat(47), libc.sbrk(0), stat(28), stat(48), stat(49), memory, memory + size, 0]
class Map(ctypes.Structure):
    _fields_ = [("words", ctypes.c_uint64 * 12), ("auxv_size", ctypes.c_uint32), ("exe", ctypes.c_uint32)]
told = Map((ctypes.c_uint64 * 12)(*words), 0, 0xFFFFFFFF)
if libc.prctl(35, 14, ctypes.byref(told), ctypes.c_ulong(ctypes.sizeof(told)), 0) != 0:
    sys.exit(os.strerror(ctypes.get_errno()))
print("told", flush=True)
time.sleep(600)
`;

function start(command: string, args: readonly string[], env: Record<string, string> = {}) {
  const child = spawn(command, args, { env: { ...process.env, ...env }, stdio: ["ignore", "pipe", "inherit"] });
  onTestFinished(() => void child.kill("SIGKILL"));
  return child;
}

test("one whose environment is said to be without end hides no other, and costs no memory", async ({ skip }) => {
  skip(process.platform !== "linux", "processes are found in /proc");
  const marked = start("sleep", ["600"], { TREADLE_TEST_MARK: "here" });
  const lying = start("python3", ["-c", liar, String(3 * 2 ** 30)]);
  const [said] = (await Promise.race([once(lying.stdout, "data"), once(lying, "exit")])) as [Buffer | number];
  skip(typeof said === "number", "this kernel lets none say so");
  const before = process.memoryUsage().rss;
  const test = has("TREADLE_TEST_MARK", "here");
  expect(await foundInTurns(test)).toEqual([marked.pid]);
  expect(foundNow(test)).toEqual([marked.pid]);
  expect(process.memoryUsage().rss - before).toBeLessThan(200 * 2 ** 20);
});

test("a variable is read from an environment whole, or not at all", () => {
  const environment = Buffer.from("\0A=1\0AB=two\0B=\0");
  expect(variableOf("A", environment)).toBe("1");
  expect(variableOf("AB", environment)).toBe("two");
  expect(variableOf("B", environment)).toBe("");
  expect(variableOf("two", environment)).toBeUndefined();
  expect(has("AB", "tw")(environment)).toBe(false);
  expect(has("AB", "two")(environment)).toBe(true);
});

test("only a process of this machine, container, clock and user is ever said to be gone", async ({ skip }) => {
  if (ownName === undefined) return skip("processes are found in /proc");
  const ended = start("true", []);
  await once(ended, "exit");
  const own = ownName.split("/");
  const named = (at: number, part: string) => own.with(at, part).join("/");
  expect(isGone(ownName)).toBe(false);
  expect(isGone(named(4, String(ended.pid)))).toBe(true);
  expect(isGone(named(5, "1"))).toBe(true); // its number was used again
  for (const at of [0, 1, 2, 3])
    expect(isGone(own.with(4, String(ended.pid)).with(at, "other").join("/"))).toBeUndefined();
  for (const name of ["", "/", "a/b/c/d/e/f", named(4, "-1"), named(4, "")]) expect(isGone(name)).toBeUndefined();
});
