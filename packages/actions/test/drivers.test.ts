import { execFileSync, spawn } from "node:child_process";
import { existsSync, readdirSync } from "node:fs";
import { mkdir, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { availableParallelism, tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { CgroupV2, findCgroups } from "../src/drivers/cgroup.ts";
import { CgroupDriver, cgroupDriverLacks, ProcessDriver, type Sandbox, type SandboxDriver } from "../src/index.ts";
import { eventually, processesWith } from "./support/processes.ts";

const lacks = cgroupDriverLacks();
const drivers: [string, () => SandboxDriver, string | undefined][] = [
  ["process", () => new ProcessDriver(), undefined],
  ["cgroup", () => new CgroupDriver(), lacks],
];
const lines = (buffer: Buffer): string[] => buffer.toString().trim().split("\n");
for (const [name, make, missing] of drivers) {
  describe.skipIf(missing !== undefined)(
    `${name} driver${missing === undefined ? "" : ` (skipped: ${missing})`}`,
    () => {
      let driver: SandboxDriver;
      let sandbox: Sandbox;
      beforeAll(async () => {
        driver = make();
        sandbox = await driver.open({ memoryBytes: 96 * 2 ** 20, maxProcesses: 40 });
      });
      afterAll(async () => {
        await driver.close();
      });

      test("returns output, error output and exit code, with input given", async () => {
        const result = await sandbox.exec({ command: ["sh", "-c", "cat; echo bad >&2; exit 3"], stdin: "in" });
        expect([result.status, result.exitCode, result.stdout.toString(), result.stderr.toString()]).toEqual([
          "exited",
          3,
          "in",
          "bad\n",
        ]);
      });

      test("the environment is what was given and nothing of the host's", async () => {
        process.env.TREADLE_TEST_SECRET = "secret";
        const { stdout } = await sandbox.exec({ command: ["env"], environment: { GIVEN: "a b=c" } });
        delete process.env.TREADLE_TEST_SECRET;
        expect(lines(stdout).filter((l) => !/^(PATH|HOME|LANG|PWD|_)=/.test(l))).toEqual(["GIVEN=a b=c"]);
      });

      test("files go in and out and stay from command to command; nothing outside can be named", async () => {
        const bytes = Buffer.from([0, 255, 10, 13]);
        await sandbox.writeFile("folder/data.bin", bytes);
        expect(
          (await sandbox.exec({ command: ["sh", "-c", "cat folder/data.bin > copy; wc -c < copy"] })).stdout
            .toString()
            .trim(),
        ).toBe("4");
        expect(await sandbox.readFile("copy")).toEqual(bytes);
        await expect(sandbox.readFile("missing")).rejects.toMatchObject({ code: "sandbox.failed" });
        await expect(sandbox.readFile("copy", 3)).rejects.toMatchObject({ code: "sandbox.failed" });
      });

      test("X1 X3 a command that ignores SIGTERM ends at its time limit, with its children", async () => {
        const result = await sandbox.exec({
          command: ["sh", "-c", "trap '' TERM; sleep 61.25 & while :; do sleep 0.05; done"],
          timeoutMs: 150,
          graceMs: 150,
        });
        expect(result.status).toBe("timeout");
        expect(result.exitCode).toBe(null);
        expect(await eventually(() => processesWith("61.25").length === 0)).toBe(true);
      });

      test("X3 a command that heeds SIGTERM may finish what it does", async () => {
        const result = await sandbox.exec({
          command: ["sh", "-c", "trap 'echo report; exit 0' TERM; while :; do sleep 0.02; done"],
          timeoutMs: 200,
          graceMs: 5000,
        });
        expect([result.status, result.stdout.toString()]).toEqual(["timeout", "report\n"]);
      });

      test("X2 endless output ends the command and keeps no more than the limit", async () => {
        const result = await sandbox.exec({ command: ["yes"], maxOutputBytes: 10_000 });
        expect([result.status, result.stdout.length]).toEqual(["output-limit", 10_000]);
      });

      test("X1 what a command leaves in the background ends with it", async () => {
        const result = await sandbox.exec({ command: ["sh", "-c", "sleep 62.25 & echo started"] });
        expect([result.status, result.exitCode]).toEqual(["exited", 0]);
        expect(await eventually(() => processesWith("62.25").length === 0)).toBe(true);
      });

      test("an abort ends it", async () => {
        const abort = new AbortController();
        const running = sandbox.exec({ command: ["sleep", "63.25"], signal: abort.signal });
        setTimeout(() => abort.abort(), 100);
        expect((await running).status).toBe("cancelled");
      });

      test("a program that does not exist is an exit code, or a clear failure, never a hang", async () => {
        expect((await sandbox.exec({ command: ["no-such-program"] })).exitCode).toBe(127);
      });

      test.skipIf(availableParallelism() < 2)("a command sees the cores it was given", async () => {
        const see = async (cores: number[]) =>
          (await sandbox.exec({ command: ["nproc"], cores })).stdout.toString().trim();
        expect([await see([1]), await see([0, 1])]).toEqual(["1", "2"]);
      });

      test("a closed sandbox refuses commands and ends those that run", async () => {
        const other = await driver.open();
        const running = other.exec({ command: ["sleep", "64.25"] });
        await new Promise((resolve) => setTimeout(resolve, 100));
        await other.close();
        expect((await running).status).toBe("cancelled");
        await expect(other.exec({ command: ["true"] })).rejects.toMatchObject({ code: "sandbox.failed" });
        expect(processesWith("64.25")).toEqual([]);
      });
    },
  );
}

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

    test("commands are nobody, without capabilities, and cannot gain any", async () => {
      expect(await say("id -u; grep -E '^(CapEff|CapBnd|NoNewPrivs)' /proc/self/status | tr -s '\\t' ' '")).toBe(
        "65534\nCapEff: 0000000000000000\nCapBnd: 0000000000000000\nNoNewPrivs: 1",
      );
    });

    test("programs can read the system's configuration that they are given", async () => {
      const { stdout } = await sandbox.exec({ command: ["sh", "-c", "id -un; ls -d /etc/ssl"] });
      expect(lines(stdout)).toEqual(["nobody", "/etc/ssl"]);
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
      expect(["timeout", "exited"]).toContain(result.status);
      expect(await say("echo alive")).toBe("alive");
      expect(processesWith("65.25")).toEqual([]);
    });

    test("a command above the memory ends as out of memory, and its sandbox lives on", async () => {
      const hungry = await sandbox.exec({ command: ["python3", "-c", "x = b'x' * (400 << 20)"], timeoutMs: 30_000 });
      expect(hungry.status).toBe("out-of-memory");
      expect(await say("echo alive")).toBe("alive");
    });

    test("a process that makes a session of its own ends with its command all the same", async () => {
      await say("setsid -f sleep 66.25");
      expect(await eventually(() => processesWith("66.25").length === 0)).toBe(true);
    });

    test("B4 S4 nothing is left of a process that was killed: no process, group or file", async () => {
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
      child.kill("SIGKILL");
      expect(await eventually(() => processesWith("67.25").length === 0 && groups() === "")).toBe(true);
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
    expect(findCgroups(v2, "0::/", () => "hugetlb")).toMatchObject({
      reason: "control groups lack memory, pids, cpuset",
    });
    expect(findCgroups("", "", controllers)).toMatchObject({ reason: "no control groups are mounted" });
  });

  test("version 2 writes its limits where the kernel reads them (on plain files)", async () => {
    const base = await mkdtemp(join(tmpdir(), "treadle-v2-"));
    const tree = new CgroupV2(base, "session");
    await mkdir(join(base, "session"));
    await tree.createSandbox("s", { memoryBytes: 1000, maxProcesses: 7 });
    expect(await tree.createExec("s", "e", [2, 3])).toEqual([join(base, "session/s/e/cgroup.procs")]);
    const at = (file: string) => readFile(join(base, "session", file), "utf8");
    expect([
      await at("s/memory.max"),
      await at("s/pids.max"),
      await at("s/e/cpuset.cpus"),
      await at("cgroup.subtree_control"),
    ]).toEqual(["1000", "7", "2,3", "+cpuset +memory +pids"]);
    await writeFile(join(base, "session/s/memory.events"), "low 0\noom 2\noom_kill 1\n");
    expect(tree.outOfMemoryKills("s")).toBe(1);
    await rm(base, { recursive: true });
  });
});
