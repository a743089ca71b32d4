import { describe, expect, test } from "vitest";
import { oomScore } from "../../src/drivers/command.ts";
import type { SandboxDriver } from "../../src/index.ts";

/** Processes as small as those that hold a sandbox: nothing but their rank tells the kernel which ones to end. */
const memoryBytes = 24 * 2 ** 20;
const crowd = "i=0; while [ $i -lt 290 ]; do sleep 5 & i=$((i+1)); done; wait";

/** The promise of every driver that limits memory. */
export function describeShortMemory(name: string, make: () => SandboxDriver, missing?: string): void {
  describe.skipIf(missing !== undefined)(
    `${name} driver, short of memory${missing === undefined ? "" : ` (skipped: ${missing})`}`,
    () => {
      test("CG7, DK4 what many small processes take together never ends what holds the sandbox", async () => {
        const driver = make();
        try {
          const sandbox = await driver.open({ memoryBytes, maxProcesses: 300 });
          const shell = sandbox.holdShell();
          for (let round = 0; round < 2; round++) {
            await sandbox.exec({ command: ["sh", "-c", crowd], timeoutMs: 2000, graceMs: 0 });
            await shell.ask({ program: crowd, timeoutMs: 2000 });
          }
          const score = "cat /proc/self/oom_score_adj";
          const scores = [
            (await sandbox.exec({ command: ["sh", "-c", score] })).stdout,
            (await shell.ask({ program: score })).output,
          ];
          expect(scores.map(Number)).toEqual([oomScore(memoryBytes), oomScore(memoryBytes)]);
          await shell.close();
        } finally {
          await driver.close();
        }
      });
    },
  );
}
