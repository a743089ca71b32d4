/** `DockerDriver` with gVisor as the engine's runtime. */
import { readFileSync } from "node:fs";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { DockerDriver, dockerDriverLacks } from "../src/docker.ts";
import type { Sandbox } from "../src/index.ts";
import { startDockerEngine, type TestEngine } from "./support/docker-engine.ts";
import { describeDriver } from "./support/driver-contract.ts";
import { describeHeldShell } from "./support/held-shell-contract.ts";
import { eventually } from "./support/processes.ts";

const started = await startDockerEngine({ runsc: true });
const missing = typeof started === "string" ? started : undefined;
const engine = started as TestEngine;
afterAll(async () => {
  if (missing === undefined) await engine.close();
});
/** `diskLookMs`: what all drivers are tried with goes beyond the limit on files for a moment, which is not looked at. */
const driverOf = (own = {}, diskLookMs = 600_000) =>
  new DockerDriver({ image: engine.image, socket: engine.socket, runtime: "runsc", ...own }, { diskLookMs });

describeDriver("docker, runsc", () => driverOf(), missing, 360, { isGvisor: true });
describeHeldShell("docker, runsc", () => driverOf(), missing, 370, { isGvisor: true });

describe.skipIf(missing !== undefined)(
  `what only runsc changes${missing === undefined ? "" : ` (skipped: ${missing})`}`,
  () => {
    let driver: DockerDriver;
    let sandbox: Sandbox;
    beforeAll(async () => {
      driver = driverOf();
      sandbox = await driver.open({ memoryBytes: 96 * 2 ** 20, maxProcesses: 40 });
    });
    afterAll(() => driver.close());
    const say = async (script: string) =>
      (await sandbox.exec({ command: ["sh", "-c", script] })).stdout.toString().trim();

    test("commands run on gVisor's kernel, and the driver says so", async () => {
      expect(driver.isolation).toMatch(/by runtime 'runsc'$/);
      const host = readFileSync("/proc/sys/kernel/osrelease", "utf8").trim();
      expect(await say("uname -r")).not.toBe(host);
    });

    test("DK1 DK7 what leaves its parent ends with its command, when nothing else runs", async () => {
      await say("setsid sleep 366.25 >/dev/null 2>&1 & echo");
      expect(await say("cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c '[3]66.25'")).toBe("0");
    });

    test("DK7 a command's cores are those of the container's control group, and its memory is told", async () => {
      const [pid] = [(await engine.docker.getContainer(sandbox.id).inspect()).State.Pid];
      const allowed = () => /^Cpus_allowed_list:\t(.*)$/m.exec(readFileSync(`/proc/${pid}/status`, "utf8"))?.[1];
      await sandbox.exec({ command: ["true"], cores: [0] });
      expect(allowed()).toBe("0");
      expect(sandbox.usedBytes()).toBeGreaterThan(2 ** 20);
    });

    test("DK7 when memory runs out the sandbox is lost, with the cause", async () => {
      const own = await driver.open({ memoryBytes: 64 * 2 ** 20, maxProcesses: 20 });
      const hungry = own.exec({ command: ["sh", "-c", "exec tail -c 400m /dev/zero"], timeoutMs: 60_000 });
      await expect(hungry).rejects.toMatchObject({
        code: "sandbox.failed",
        message: expect.stringMatching(/has died/),
      });
      expect(await eventually(() => own.loss === "its memory ran out, and its runtime ended with it")).toBe(true);
      await own.close();
    });

    test("DK6 DK7 a container whose files are beyond its limit ends with its cause; others go on", async () => {
      const own = driverOf({}, 200);
      const [greedy, modest] = await Promise.all([own.open({ diskBytes: 2 ** 22 }), own.open({ diskBytes: 2 ** 22 })]);
      const fill = "for i in 1 2 3 4; do head -c 2m /dev/zero > /work/f$i; done; sleep 60";
      await expect(greedy.exec({ command: ["sh", "-c", fill] })).rejects.toThrow(/has died: its files take/);
      expect(greedy.loss).toMatch(/^its files take \d+ bytes, and may take 4194304$/);
      const holes = "for i in 1 2 3 4; do truncate -s 3M /work/f$i; done; sleep 2; echo goes on";
      expect((await modest.exec({ command: ["sh", "-c", holes] })).stdout.toString()).toBe("goes on\n");
      await own.close();
    });

    test("a runtime that the engine lacks is named, with those that it has and the remedy", async () => {
      const said = /no runtime 'none-such'; it has .*'runsc'.*; add it to the engine's runtimes .*docker\.runtime/;
      expect(await dockerDriverLacks(engine.image, engine.socket, "none-such")).toMatch(said);
      expect(await dockerDriverLacks(engine.image, engine.socket, "runsc")).toBeUndefined();
      const other = driverOf({ runtime: "none-such" });
      await expect(other.open()).rejects.toMatchObject({
        code: "sandbox.unavailable",
        message: expect.stringMatching(said),
      });
      await other.close();
    });

    test("SN1 DK7 a snapshot is refused where the runtime keeps files to itself", async () => {
      const other = driverOf({ runtime: "runsc-overlay" });
      const own = await other.open();
      await own.writeFile("kept", "here");
      await expect(own.snapshot({ maxBytes: 2 ** 26 })).rejects.toMatchObject({
        code: "action.invalid",
        message: expect.stringMatching(/keeps the container's files to itself; give the runtime .*--overlay2=none/),
      });
      await other.close();
    });

    test("DK7 without its control group a runtime that cannot change cores is refused", async () => {
      const other = driverOf({ fastPath: false });
      await expect(other.open()).rejects.toMatchObject({
        code: "sandbox.unavailable",
        message: expect.stringMatching(/'runsc' does not change the cores of a container: .*; run as root beside/),
      });
      await other.close();
    });
  },
);
