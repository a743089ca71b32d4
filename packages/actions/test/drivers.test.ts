import { execFileSync, spawn } from "node:child_process";
import { existsSync, readdirSync, readFileSync, statfsSync, statSync } from "node:fs";
import { chmod, mkdir, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { TreadleError } from "@treadle/contracts";
import fc from "fast-check";
import { afterAll, beforeAll, describe, expect, test, vi } from "vitest";
import { CgroupV2, findCgroups } from "../src/drivers/cgroup.ts";
import {
  ActionPool,
  CgroupDriver,
  CommandActions,
  CpuManager,
  cgroupDriverLacks,
  describeHost,
  diskImagesLack,
  ProcessDriver,
  type Sandbox,
  type SandboxDriver,
} from "../src/index.ts";
import { describeDriver } from "./support/driver-contract.ts";
import { eventually, processesWith } from "./support/processes.ts";
import { describeShortMemory } from "./support/short-memory-contract.ts";

/** files that the drivers find missing */
const hidden = vi.hoisted(() => new Set<unknown>());
vi.mock("node:fs", async (original) => {
  const fs = await original<typeof import("node:fs")>();
  return { ...fs, existsSync: (path: string) => !hidden.has(path) && fs.existsSync(path) };
});

const lacks = cgroupDriverLacks();
const drivers: [string, () => SandboxDriver, string | undefined][] = [
  ["process", () => new ProcessDriver(), undefined],
  ["cgroup", () => new CgroupDriver(), lacks],
];
/** Files of a process's sandboxes that are mounted. */
const loopsOf = (pid: number): string[] =>
  readdirSync("/sys/block")
    .map((name) => `/sys/block/${name}/loop/backing_file`)
    .filter((file) => existsSync(file))
    .map((file) => readFileSync(file, "utf8").trim())
    .filter((file) => file.includes(`treadle-${pid}-`));
const mountedLoops = (): number => readFileSync("/proc/self/mounts", "utf8").split("/dev/loop").length;

const lines = (buffer: Buffer): string[] => buffer.toString().trim().split("\n");
for (const [name, make, missing] of drivers) describeDriver(name, make, missing);
describeShortMemory("cgroup", () => new CgroupDriver(), lacks);

describe.skipIf(lacks !== undefined)(
  `what only the cgroup driver promises${lacks === undefined ? "" : ` (skipped: ${lacks})`}`,
  () => {
    let driver: CgroupDriver;
    let sandbox: Sandbox;
    beforeAll(async () => {
      driver = new CgroupDriver();
      sandbox = await driver.open({ memoryBytes: 96 * 2 ** 20, maxProcesses: 40 });
    });
    afterAll(() => driver.close());
    const say = async (script: string) =>
      (await sandbox.exec({ command: ["sh", "-c", script] })).stdout.toString().trim();

    test("commands are a user of their sandbox's own, without capabilities, and cannot gain any", async () => {
      const ids = [
        await say("id -u; id -g"),
        (await (await driver.open()).exec({ command: ["id", "-u"] })).stdout.toString(),
      ];
      const [own, group] = ids[0]!.split("\n").map(Number);
      expect([own! >= 1_000_000_000, group === own, Number(ids[1]) >= 1_000_000_000, Number(ids[1]) === own]).toEqual([
        true,
        true,
        true,
        false,
      ]);
      expect(await say("grep -E '^(CapEff|CapBnd|NoNewPrivs)' /proc/self/status | tr -s '\\t' ' '")).toBe(
        "CapEff: 0000000000000000\nCapBnd: 0000000000000000\nNoNewPrivs: 1",
      );
    });

    test("CG9 commands make no user namespace, in the system's folders and in a root of their own", async () => {
      const rootFolder = await mkdtemp(join(tmpdir(), "treadle-root-"));
      const system = ["/usr", "/bin", "/lib", "/lib64"].filter((folder) => existsSync(folder));
      for (const folder of [...system, "/etc", "/dev", "/proc", "/tmp", "/work"]) await mkdir(join(rootFolder, folder));
      await writeFile(join(rootFolder, "own"), "");
      await chmod(rootFolder, 0o755);
      const other = new CgroupDriver({ rootFolder, folders: Object.fromEntries(system.map((path) => [path, path])) });
      try {
        const tried =
          "unshare -U true 2>&1 | grep -c 'Operation not permitted'; test -e /own; echo $?; test -e /sandbox; echo $?";
        expect(await say(tried)).toBe("1\n1\n1");
        const own = await other.open();
        expect(lines((await own.exec({ command: ["sh", "-c", tried] })).stdout)).toEqual(["1", "0", "1"]);
      } finally {
        await other.close();
        await rm(rootFolder, { recursive: true });
      }
    });

    test("CG10 commands, those of a held shell, and what holds a sandbox run behind a filter that they cannot take off", async () => {
      const own = await driver.open();
      const script = "grep -E '^(Seccomp|NoNewPrivs):' /proc/self/status | tr -d '\\t\\n'";
      const filtered = "NoNewPrivs:1Seccomp:2";
      expect((await own.exec({ command: ["sh", "-c", script] })).stdout.toString()).toBe(filtered);
      expect((await own.holdShell().ask({ program: script })).output.toString()).toBe(filtered);
      const statuses = processesWith("", own.id).map((pid) => readFileSync(`/proc/${pid}/status`, "utf8"));
      const holders = statuses.filter((status) => /^Name:\t(bwrap|sleep)$[\s\S]*^NSpid:\t\d+\t\d+$/m.test(status));
      expect(holders.map((status) => /^Seccomp:\t(\d)$/m.exec(status)?.[1])).toEqual(["2", "2"]);
      await own.close();
    });

    test("CG10 programs that threads, pipes, sockets and sub-processes need are none of what the filter refuses", async () => {
      const program = [
        "import multiprocessing, os, socket, subprocess, tempfile, threading",
        "left, right = socket.socketpair()",
        "thread = threading.Thread(target=lambda: left.sendall(b'a'))",
        "thread.start(); thread.join()",
        "with multiprocessing.get_context('fork').Pool(2) as pool: squares = pool.map(abs, [-2, 3])",
        "said = subprocess.run(['sh', '-c', 'echo b'], capture_output=True).stdout",
        "with tempfile.TemporaryFile() as file: file.write(b'c'); file.flush(); os.fsync(file.fileno())",
        "server = socket.create_server(('127.0.0.1', 0)); socket.create_connection(server.getsockname())",
        "print(right.recv(1), squares, said)",
      ];
      expect(await say(`python3 - <<'PYTHON'\n${program.join("\n")}\nPYTHON`)).toBe("b'a' [2, 3] b'b\\n'");
    });

    test("CG10 a root of commands needs no program that puts the filter on", async () => {
      const rootFolder = await mkdtemp(join(tmpdir(), "treadle-root-"));
      for (const folder of ["dev", "proc", "tmp", "work", "etc"]) await mkdir(join(rootFolder, folder));
      const script =
        'for p in sh env setpriv head cat; do p=$(command -v $p); echo $p; ldd $p | grep -o "/[^ )]*"; done | sort -u | while read -r f; do mkdir -p "$1$(dirname $f)"; cp -L $f "$1$f"; done; mkdir -p "$1/bin"; cp -L /bin/sh "$1/bin/sh"; chmod 755 "$1"';
      execFileSync("sh", ["-c", script, "sh", rootFolder]);
      const other = new CgroupDriver({ rootFolder });
      try {
        const own = await other.open();
        const { stdout, stderr } = await own.exec({ command: ["sh", "-c", "command -v perl; cat /proc/self/status"] });
        expect([stderr.toString(), stdout.toString()]).toEqual(["", expect.stringMatching(/^Name.*^Seccomp:\t2$/ms)]);
      } finally {
        await other.close();
        await rm(rootFolder, { recursive: true });
      }
    });

    const noImages = lacks === undefined ? diskImagesLack() : lacks;
    test.skipIf(noImages !== undefined)(
      "CG11 a limited /work is mounted where its sandbox alone sees it, in a file without a name",
      async () => {
        const own = new CgroupDriver();
        const before = mountedLoops();
        const limited = await own.open({ diskBytes: 16 * 2 ** 20 });
        const run = async (script: string) => (await limited.exec({ command: ["sh", "-c", script] })).stdout.toString();
        expect(await run("df -k /work | tail -1 | tr -s ' ' | cut -d' ' -f2")).toMatch(/^1[0-6]\d{3}\n$/);
        expect([mountedLoops(), loopsOf(process.pid)]).toEqual([before, [expect.stringMatching(/ext4 \(deleted\)$/)]]);
        // Its device is no file of the sandbox.
        expect(await run("ls /dev | grep -c loop; stat -c %u:%g /work; id -u")).toMatch(/^0\n(\d+):\1\n\1\n$/);
        await own.close();
        expect(await eventually(() => loopsOf(process.pid).length === 0)).toBe(true);
      },
    );

    test.skipIf(noImages !== undefined)("CG11 many files and folders are within the limit, too", async () => {
      const limited = await driver.open({ memoryBytes: 96 * 2 ** 20, diskBytes: 16 * 2 ** 20 });
      const script =
        "i=0; while [ $i -lt 40 ]; do head -c 1m /dev/zero > f$i 2>/dev/null || break; i=$((i+1)); done; echo $i";
      const written = async () => Number((await limited.exec({ command: ["sh", "-c", script] })).stdout.toString());
      expect(await written()).toBeLessThanOrEqual(16);
      const inodes = "i=0; while mkdir d$i 2>/dev/null; do i=$((i+1)); [ $i -gt 5000 ] && break; done; echo $i";
      const made = Number((await limited.exec({ command: ["sh", "-c", inodes] })).stdout.toString());
      expect(made).toBeLessThan(5000);
      await limited.close();
    });

    test.skipIf(noImages !== undefined)("CG13 what a sandbox wrote last is not written when it ends", async () => {
      const limited = await driver.open({ diskBytes: 512 * 2 ** 20 });
      const run = async (script: string) => (await limited.exec({ command: ["sh", "-c", script] })).stdout.toString();
      const device = Number(await run("stat -c %d /work"));
      const writtenBytes = (): number => {
        const counts = readFileSync(`/sys/dev/block/${device >> 8}:${device & 255}/stat`, "utf8")
          .trim()
          .split(/ +/);
        return 512 * Number(counts[6]);
      };
      await run("head -c 300m /dev/zero > file; sync -d file; head -c 100m /dev/zero > late");
      const before = writtenBytes();
      expect(before).toBeGreaterThan(300 * 2 ** 20);
      await limited.close();
      expect(writtenBytes() - before).toBeLessThan(8 * 2 ** 20);
    });

    test.skipIf(noImages !== undefined)("CG11 a snapshot that is beyond a limit is named with its remedy", async () => {
      const own = new CgroupDriver();
      const first = await own.open();
      await first.exec({ command: ["sh", "-c", "head -c 20m /dev/zero > large"] });
      const snapshot = await first.snapshot({ maxBytes: 2 ** 26 });
      await expect(own.open({ from: snapshot, diskBytes: 16 * 2 ** 20 })).rejects.toThrow(
        /^a snapshot of '2\d{7}' bytes does not fit in '\/work' of what begins from it; .*disk_bytes.*$/,
      );
      const large = await own.open({ from: snapshot, diskBytes: 32 * 2 ** 20 });
      expect((await large.exec({ command: ["sh", "-c", "wc -c < large"] })).stdout.toString().trim()).toBe(
        `${20 * 2 ** 20}`,
      );
      await own.close();
    });

    test("an action that is ended while its shell joins its control group leaves neither the group nor an error", async () => {
      const own = await driver.open({});
      const delays = fc.sample(fc.integer({ min: 0, max: 30 }), 120);
      for (const [i, delayMs] of delays.entries()) {
        const shell = own.holdShell();
        const cancelling = new AbortController();
        const asked = shell.ask({ program: "exit 3", signal: cancelling.signal });
        await delay(delayMs);
        if (i % 3 === 0) cancelling.abort();
        else if (i % 3 === 1) await shell.close();
        const { status, exitCode } = await asked;
        expect([`${status} ${exitCode}`]).toEqual([status === "exited" ? "exited 3" : "cancelled null"]);
        await shell.close();
      }
      expect((await own.exec({ command: ["true"] })).exitCode).toBe(0);
      await own.close();
    });

    test("CG6 a program that entering needs and that is not there is named, with its package", () => {
      for (const folder of ["/usr/local/bin", "/usr/bin", "/bin"]) hidden.add(`${folder}/perl`);
      try {
        expect(cgroupDriverLacks()).toBe("'perl' is not in '/usr/local/bin:/usr/bin:/bin'; install the package perl");
        expect(() => new CgroupDriver()).toThrow(/cannot be used: 'perl' is not in/);
      } finally {
        hidden.clear();
      }
    });

    test("programs can read the system's configuration that they are given", async () => {
      const { stdout } = await sandbox.exec({ command: ["sh", "-c", "id -un; ls -d /etc/ssl"] });
      expect(lines(stdout)).toEqual(["sandbox", "/etc/ssl"]);
    });

    test("they see neither the host's files nor its processes nor a network, and write only to their own folders", async () => {
      expect(await say("ls /root /home /work/.. 2>&1 | grep -c 'main' ; ls /root 2>&1 | grep -c 'No such'")).toBe(
        "0\n1",
      );
      expect(Number(await say("ls /proc | grep -c '^[0-9]'"))).toBeLessThan(10);
      expect(await say("cat /proc/net/dev | tail -n +3 | cut -d: -f1 | tr -d ' '")).toBe("lo");
      expect(
        await say("for d in / /usr /etc /dev /work /tmp /dev/shm; do touch $d/x 2>/dev/null && echo $d; done"),
      ).toBe("/work\n/tmp\n/dev/shm");
    });

    test("a link that a command made does not lead files out", async () => {
      await say("ln -s /etc/hostname out; ln -s /etc/treadle-escape in");
      await expect(sandbox.readFile("out")).rejects.toMatchObject({ code: "sandbox.failed" });
      await expect(sandbox.writeFile("in", "x")).rejects.toMatchObject({ code: "sandbox.failed" });
      expect(existsSync("/etc/treadle-escape")).toBe(false);
    });

    test("a fork bomb stays within its processes and ends at its time limit", async () => {
      const result = await sandbox.exec({
        command: ["sh", "-c", "b() { b | b & }; b; sleep 65.25"],
        timeoutMs: 500,
        graceMs: 0,
      });
      // Where its processes together need more memory than there is, a command ends of that, too.
      expect(["timeout", "exited", "out-of-memory"]).toContain(result.status);
      expect(await say("echo alive")).toBe("alive");
      expect(processesWith("65.25")).toEqual([]);
    });

    test("a command above the memory ends as out of memory, and its sandbox lives on", async () => {
      const hungry = await sandbox.exec({ command: ["python3", "-c", "x = b'x' * (400 << 20)"], timeoutMs: 30_000 });
      expect(hungry.status).toBe("out-of-memory");
      expect(await say("echo alive")).toBe("alive");
    });

    test("CA1 a trajectory whose memory was filled with files ends with its cause; nothing runs in an empty folder instead", async () => {
      const cpu = new CpuManager({ nodes: [describeHost()] });
      const actions = new CommandActions(new ActionPool({ managers: [cpu] }), driver);
      actions.openTrajectory("filled", { memoryBytes: 64 * 2 ** 20 });
      const run = async (script: string) =>
        actions.submit(
          "filled",
          { kind: "sh", cost: { cpu: 1 }, retries: { limit: 1 } },
          { command: ["sh", "-c", script] },
        ).result;
      await run("echo kept > file");
      const fill = await run("for d in /tmp /dev/shm; do cat /dev/zero > $d/full; done; echo went on").catch((e) => e);
      const after = await run("cat file").catch((e) => e);
      // Either the files were refused beyond their share, and all is there, or it is over and says so.
      if (after instanceof TreadleError) {
        expect([fill.code ?? fill.status, after.code]).toEqual([expect.stringMatching(/lost|memory/), "sandbox.lost"]);
        expect(after.message).toMatch(/ran out of memory/);
      } else expect([fill.status, after.stdout.toString()]).toEqual(["exited", "kept\n"]);
      await actions.closeTrajectory("filled");
    });

    test("CG2 files of /tmp and /dev/shm are memory, up to a share of it; those of /work are of this machine's disk", async () => {
      const own = await driver.open({ memoryBytes: 96 * 2 ** 20 });
      const run = async (script: string) =>
        (await own.exec({ command: ["sh", "-c", script] })).stdout.toString().trim();
      const written = async (path: string): Promise<number> => {
        const before = own.usedBytes()!;
        await run(`head -c 20m /dev/zero > ${path} && sync ${path}`);
        return own.usedBytes()! - before;
      };
      expect(await run("stat -f -c %T /tmp /dev/shm; stat -f -c '%b %S' /tmp /dev/shm")).toBe(
        `tmpfs\ntmpfs\n${12 * 2 ** 10} 4096\n${6 * 2 ** 10} 4096`,
      );
      for (const path of ["/tmp/file", "/dev/shm/file"]) expect(await written(path)).toBeGreaterThan(19 * 2 ** 20);
      expect(await run("head -c 60m /dev/zero > /tmp/large || ls -s --block-size=1M /tmp/large")).toMatch(/^2[0-9] /);
      await run("rm /tmp/* /dev/shm/*");
      expect(Number(await run("stat -c %d ."))).toBe(statSync(tmpdir()).dev);
      const isMemory = statfsSync(tmpdir()).type === 0x01021994; // TMPFS_MAGIC
      if (!isMemory) expect(await run("head -c 120m /dev/zero > file && stat -c %s file")).toBe(String(120 * 2 ** 20));
      await own.close();
    });

    test("CD1 time limits, cancels and closing hold also where others keep a command from beginning", async () => {
      const own = await driver.open();
      const hostile = own.exec({ command: ["sh", "-c", "while :; do kill -STOP -1; done"], timeoutMs: 60_000 });
      expect(await eventually(() => processesWith("kill -STOP", own.id).length > 0)).toBe(true);
      await new Promise((resolve) => setTimeout(resolve, 200));
      const cancel = new AbortController();
      const late = own.exec({ command: ["sleep", "60"], timeoutMs: 500, graceMs: 100 });
      const cancelled = own.exec({ command: ["sleep", "60"], signal: cancel.signal, graceMs: 100 });
      setTimeout(() => cancel.abort(), 300);
      expect([(await late).status, (await cancelled).status]).toEqual(["timeout", "cancelled"]);
      await own.close();
      expect((await hostile).status).toBe("cancelled");
    });

    test("an end of memory before a command begins is one", async () => {
      const small = await driver.open({ memoryBytes: 16 * 2 ** 20 });
      const words = Array.from({ length: 80 }, () => "x".repeat(100_000));
      expect((await small.exec({ command: ["true", ...words] })).status).toBe("out-of-memory");
      await small.close();
    });

    test("CG4 what waits for the next command is not there while one runs, and is done without where it died", async () => {
      const own = await driver.open();
      const spare = () => processesWith("head -c", own.id);
      const waiting = () => spare().length;
      const seen = async () =>
        (await own.exec({ command: ["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"] })).stdout;
      await own.exec({ command: ["true"] });
      expect(await eventually(() => waiting() > 0)).toBe(true);
      expect((await seen()).toString()).not.toContain("head -c");
      expect(await eventually(() => waiting() > 0)).toBe(true);
      for (const pid of spare()) process.kill(pid, "SIGKILL");
      expect((await own.exec({ command: ["cat"], stdin: "in" })).stdout.toString()).toBe("in");
      const both = await Promise.all(["1", "2"].map((n) => own.exec({ command: ["echo", n], cores: [0] })));
      expect(both.map(({ stdout }) => stdout.toString())).toEqual(["1\n", "2\n"]);
      expect(await eventually(() => waiting() > 0)).toBe(true);
      await own.holdShell().ask({ program: ":" });
      expect(waiting()).toBe(0);
      await own.close();
    });

    test("a folder of this machine is seen where it is said to be, and commands can begin there; none can change it", async () => {
      const place = await mkdtemp(join(tmpdir(), "treadle-testbed-"));
      await mkdir(join(place, "deep"));
      await writeFile(join(place, "deep/file"), "made");
      await chmod(place, 0o755);
      const folders = { "/testbed": place, "/opt/some/where": place };
      const own = new CgroupDriver({ folders });
      try {
        const one = await own.open({ container: { workingFolder: "/testbed" } });
        const script =
          "pwd; stat -c '%U %a' .; cat deep/file; touch new 2>&1; rm deep/file 2>&1; chmod 777 . 2>&1; ls /opt/some/where; touch /work/new && ls /work";
        const { stdout } = await one.exec({ command: ["sh", "-c", script] });
        expect(stdout.toString().replaceAll(/(touch|rm|chmod): .*Read-only file system/g, "$1 refused")).toBe(
          "/testbed\nroot 755\nmadetouch refused\nrm refused\nchmod refused\ndeep\nnew\n",
        );
        expect((await one.holdShell().ask({ program: "pwd" })).output.toString()).toBe("/testbed\n");
        await expect(own.open({ container: { workingFolder: "/nowhere" } })).rejects.toMatchObject({
          code: "sandbox.unavailable",
          message: expect.stringMatching(
            /working folder '\/nowhere' cannot be used: .*No such file.*; name one that is in/,
          ),
        });
        await expect(own.open({ container: { user: "root" } })).rejects.toMatchObject({
          message: expect.stringMatching(/'cgroup' has no images: user 'root' was asked for/),
        });
      } finally {
        await own.close();
        await rm(place, { recursive: true });
      }
      expect(() => new CgroupDriver({ folders })).toThrow(/which is to be '\/testbed', is not there; make it/);
    });

    test("an argument reaches a command as it is, however long", async () => {
      const awkward = `'; echo $(id) "\n\\ü ${"x".repeat(100_000)}`;
      const { stdout } = await sandbox.exec({ command: ["printf", "%s", awkward], environment: { A: "1\n2" } });
      expect(stdout.toString()).toBe(awkward);
    });

    test("CG1 a process that makes a session of its own ends with its command all the same", async () => {
      await say("setsid -f sleep 66.25");
      expect(await eventually(() => processesWith("66.25").length === 0)).toBe(true);
    });

    test("CG1, CG3 of a closed sandbox nothing is left: neither commands nor what held it, outside and inside", async () => {
      const own = await driver.open();
      const isOwn = (pid: string) => {
        try {
          return readFileSync(`/proc/${pid}/cgroup`, "utf8").includes(own.id);
        } catch {
          return false; // ended meanwhile
        }
      };
      const left = () => readdirSync("/proc").filter((name) => /^\d+$/.test(name) && isOwn(name));
      const running = own.exec({ command: ["sh", "-c", "setsid -f sleep 68.25; sleep 68.25"] });
      expect(await eventually(() => processesWith("68.25").length > 1)).toBe(true);
      expect(left().length).toBeGreaterThan(3);
      await own.close();
      expect((await running).status).toBe("cancelled");
      expect(left()).toEqual([]);
    });

    test("CG5 S4 nothing is left of a process that was killed: no process, group or file", async () => {
      const program = fileURLToPath(new URL("support/holds-a-sandbox.ts", import.meta.url));
      const child = spawn(process.execPath, ["--import", "tsx", "--conditions=source", program], {
        stdio: ["ignore", "pipe", "inherit"],
      });
      await new Promise<void>((resolve) => child.stdout.once("data", () => resolve()));
      const pid = child.pid!;
      const groups = () =>
        execFileSync("sh", ["-c", `find /sys/fs/cgroup -maxdepth 4 -name 'treadle-${pid}-*' 2>/dev/null`])
          .toString()
          .trim();
      expect(processesWith("67.25").length).toBeGreaterThan(0);
      expect(groups()).not.toBe("");
      // CG11: the limited /work goes with what has it mounted.
      expect(loopsOf(pid).length).toBe(diskImagesLack() === undefined ? 1 : 0);
      child.kill("SIGKILL");
      const left = () => [...processesWith("67.25"), ...loopsOf(pid), ...(groups() === "" ? [] : [groups()])];
      expect(await eventually(() => left().length === 0)).toBe(true);
      expect(
        await eventually(() =>
          readdirSync(tmpdir()).every(
            (f) => !f.startsWith(`treadle-${pid}-`) || readdirSync(join(tmpdir(), f)).length === 0,
          ),
        ),
      ).toBe(true);
    });
  },
);

describe("control groups", () => {
  const controllers = () => "cpuset cpu io memory pids";
  test("are found in version 1, in version 2, and missed with a reason", () => {
    const v1 = ["memory", "pids", "cpuset"]
      .map((c) => `1 2 0:3 / /sys/fs/cgroup/${c} rw - cgroup cgroup rw,${c}`)
      .join("\n");
    expect(findCgroups(v1, "4:memory:/own\n3:cpuset:/\n8:pids:/\n0::/", controllers)).toEqual({
      version: 1,
      memory: "/sys/fs/cgroup/memory/own",
      pids: "/sys/fs/cgroup/pids",
      cpuset: "/sys/fs/cgroup/cpuset",
    });
    const v2 = "1 2 0:3 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw";
    expect(findCgroups(v2, "0::/user.slice", controllers)).toEqual({ version: 2, base: "/sys/fs/cgroup/user.slice" });
    for (const own of ["/treadle-worker-0b5c", "/treadle-service", "/treadle-service/treadle-worker-0b5c"]) {
      const base = "/sys/fs/cgroup/user.slice";
      expect(findCgroups(v2, `0::/user.slice${own}`, controllers)).toMatchObject({ base });
      expect(findCgroups(v2, `0::${own}`, controllers)).toMatchObject({ base: "/sys/fs/cgroup" });
    }
    expect(findCgroups(v2, "0::/session", (group) => (group.endsWith("session") ? "memory pids" : "cpuset"))).toEqual({
      version: undefined,
      reason: expect.stringMatching(/^control group '\/sys\/fs\/cgroup\/session' lacks cpuset; .*Delegate=yes/),
    });
    expect(findCgroups("", "", controllers)).toMatchObject({ reason: "no control groups are mounted" });
  });

  test.skipIf(lacks !== undefined)(
    "a parent that is no control group is refused: files there would limit nothing",
    () => {
      const cgroupParent = tmpdir();
      expect(cgroupDriverLacks({ cgroupParent })).toMatch(/is no control group of version 2; name one below/);
      expect(() => new CgroupDriver({ cgroupParent })).toThrow(/is no control group/);
    },
  );

  test("CG2 version 2 writes its limits where the kernel reads them (on plain files)", async () => {
    const base = await mkdtemp(join(tmpdir(), "treadle-v2-"));
    const tree = new CgroupV2(base, "session", { isOwn: true });
    await mkdir(join(base, "session"));
    await tree.createSandbox("s", { memoryBytes: 1000, maxProcesses: 7 });
    expect(await tree.createExec("s", "e")).toEqual([join(base, "session/s/e/cgroup.procs")]);
    await tree.setCores("s", "e", [2, 3]);
    const at = (file: string) => readFile(join(base, "session", file), "utf8");
    expect([
      await at("s/memory.max"),
      await at("s/pids.max"),
      await at("s/e/cpuset.cpus"),
      await at("cgroup.subtree_control"),
    ]).toEqual(["1000", "7", "2,3", "+memory +pids +cpuset"]);
    await writeFile(join(base, "session/s/memory.events"), "low 0\noom 2\noom_kill 1\n");
    expect(tree.outOfMemoryKills("s")).toBe(1);
    await rm(base, { recursive: true });
  });
});
