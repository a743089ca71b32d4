import { describe, expect, test } from "vitest";
import type { SandboxDriver } from "../../src/index.ts";

/** Processes as small as those that hold a sandbox: nothing but their rank tells the kernel which ones to end. */
const crowd = "i=0; while [ $i -lt 290 ]; do sleep 5 & i=$((i+1)); done; wait";

/** What every driver promises that limits memory. */
export function describeShortMemory(name: string, make: () => SandboxDriver, missing?: string): void {
  describe.skipIf(missing !== undefined)(
    `${name} driver, short of memory${missing === undefined ? "" : ` (skipped: ${missing})`}`,
    () => {
      test("what many small processes take together ends some of them, never what holds the sandbox", async () => {
        const driver = make();
        const sandbox = await driver.open({ memoryBytes: 24 * 2 ** 20, maxProcesses: 300 });
        for (let round = 0; round < 3; round++)
          await sandbox.exec({ command: ["sh", "-c", crowd], timeoutMs: 2000, graceMs: 0 });
        const { stdout } = await sandbox.exec({ command: ["echo", "alive"] });
        await driver.close();
        expect(stdout.toString()).toBe("alive\n");
      });
    },
  );
}
