import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { CgroupDriver, cgroupDriverLacks, type HeldShell, ProcessDriver, type SandboxDriver } from "../src/index.ts";
import { describeHeldShell } from "./support/held-shell-contract.ts";
import { eventually, processesWith } from "./support/processes.ts";

const lacks = cgroupDriverLacks();
const drivers: [string, () => SandboxDriver, string | undefined][] = [
  ["process", () => new ProcessDriver(), undefined],
  ["cgroup", () => new CgroupDriver(), lacks],
];
const text = (output: Buffer) => output.toString().trim();

for (const [name, make, missing] of drivers)
  describeHeldShell(name, make, missing, undefined, { isolates: name !== "process" });

describe.skipIf(lacks !== undefined)(
  `what only the cgroup driver's held shell promises${lacks === undefined ? "" : ` (skipped: ${lacks})`}`,
  () => {
    let driver: CgroupDriver;
    let shell: HeldShell;
    beforeAll(async () => {
      driver = new CgroupDriver();
      shell = (await driver.open({ memoryBytes: 96 * 2 ** 20, maxProcesses: 40 })).holdShell();
    });
    afterAll(() => driver.close());

    test("SU3 what an action leaves in the background ends with it, before the next one begins", async () => {
      await shell.ask({ program: "sleep 74.25 >/dev/null 2>&1 & (setsid sleep 74.25 >/dev/null 2>&1 &)" });
      const { output } = await shell.ask({ program: "cat /proc/[0-9]*/cmdline | tr '\\0' ' '" });
      expect(text(output)).toContain("/bin/sh");
      expect(text(output)).not.toContain("74.25");
      expect(await eventually(() => processesWith("74.25").length === 0)).toBe(true);
    });

    test("HS6 a shell that waits for its next action is not there while a command runs, or another shell's action", async () => {
      const sandbox = await driver.open();
      const [one, other] = [sandbox.holdShell(), sandbox.holdShell()];
      const see = "for one in /proc/[0-9]*; do tr '\\0' ' ' < $one/cmdline; echo; done";
      const waiting = (seen: Buffer) => text(seen).match(/^\/bin\/sh ?$/gm)?.length ?? 0;
      for (let round = 0; round < 2; round++) {
        await one.ask({ program: ":" });
        // The shell that runs this is one of them.
        expect(waiting((await other.ask({ program: see })).output)).toBe(1);
        expect(waiting((await sandbox.exec({ command: ["sh", "-c", see] })).stdout)).toBe(0);
      }
      await sandbox.close();
    });

    test("a fork bomb in the background is ended with its action", async () => {
      await shell.ask({ program: "b() { b | b & }; b", timeoutMs: 500 });
      const { output } = await shell.ask({ program: "echo alive" });
      expect(text(output)).toBe("alive");
    });

    test("an action above the memory is out of memory; its sandbox goes on", async () => {
      const program = "python3 -c \"x = b'x' * (400 << 20)\"";
      expect((await shell.ask({ program, timeoutMs: 30_000 })).status).toBe("out-of-memory");
      expect(text((await shell.ask({ program: "echo alive" })).output)).toBe("alive");
    });
  },
);
