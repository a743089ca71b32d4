import { afterAll, beforeAll, describe, expect, test } from "vitest";
import type { HeldShell, Sandbox, SandboxDriver } from "../../src/index.ts";
import { sessionCommand } from "../../src/pool/shell-session.ts";
import { forgeries } from "./forgeries.ts";

export type ForgeryTarget = {
  /** what a command reaches is its sandbox; else what reaches further is not run, because it would reach the tests' host */
  readonly isolates: boolean;
  readonly missing?: string | undefined;
  /** how often each is tried: the second finds what the first left */
  readonly rounds?: number | undefined;
};

/** No command makes its driver report an end that it did not have, in a process of its own, in a held shell (HS4) or in a session (BS2). */
export function describeForgeries(
  name: string,
  make: () => SandboxDriver,
  { isolates, missing, rounds = 2 }: ForgeryTarget,
): void {
  describe.skipIf(missing !== undefined)(
    `ends reported by the ${name} driver${missing === undefined ? "" : ` (skipped: ${missing})`}`,
    () => {
      let driver: SandboxDriver;
      let sandbox: Sandbox;
      let shell: HeldShell;
      let hasPython = false;
      let hasBash = false;
      beforeAll(async () => {
        driver = make();
        sandbox = await driver.open({ memoryBytes: 128 * 2 ** 20, maxProcesses: 60 });
        shell = (await driver.open({ memoryBytes: 128 * 2 ** 20, maxProcesses: 60 })).holdShell();
        const has = async (program: string): Promise<boolean> =>
          (await sandbox.exec({ command: ["sh", "-c", `command -v ${program}`] })).exitCode === 0;
        hasPython = await has("python3");
        hasBash = await has("bash");
      });
      afterAll(() => driver.close());
      // One that stops itself is ended.
      const limits = { timeoutMs: 2500, maxOutputBytes: 2 ** 20 };

      for (const { name: attack, program, needs, reaches } of forgeries)
        test.skipIf(reaches === "all" && !isolates)(`cannot be forged by one that ${attack}`, async ({ skip }) => {
          if (needs === "python3" && !hasPython) skip();
          const ask = (text: string, own = {}) => shell.ask({ program: text, ...own });
          const exec = (text: string, own = {}) => sandbox.exec({ command: ["sh", "-c", text], graceMs: 0, ...own });
          const session = { id: "forged", hasRun: false, isBusy: false };
          const tell = (text: string, own = {}) =>
            sandbox.exec({ command: sessionCommand(session, text, sandbox.stateFolder), graceMs: 0, ...own });
          for (const run of hasBash ? [ask, exec, tell] : [ask, exec]) {
            for (let round = 0; round < rounds; round++) {
              const { status, exitCode } = await run(program, limits);
              expect([status, exitCode]).not.toEqual(["exited", 0]);
              const failing = await run("exit 7");
              expect([failing.status, failing.exitCode]).toEqual(["exited", 7]);
            }
          }
          const { output, exitCode } = await shell.ask({ program: "echo alive" });
          expect([output.toString(), exitCode]).toEqual(["alive\n", 0]);
        });

      test("a command holds no descriptor but the three that it was given", async () => {
        // Higher numbers may come from who started the tests. What lists them opens the folder as 3.
        const program =
          "ls /proc/self/fd | grep -c '^[0-9]$'; for n in 3 4 5 6 7 8 9; do (: >&$n) 2>/dev/null && echo has $n; done; exit 0";
        expect((await shell.ask({ program })).output.toString()).toBe("4\n");
        const { stdout } = await sandbox.exec({ command: ["sh", "-c", program] });
        expect(stdout.toString()).toBe("4\n");
      });
    },
  );
}
