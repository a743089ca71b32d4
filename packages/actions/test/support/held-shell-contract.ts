import { availableParallelism } from "node:os";
import fc from "fast-check";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import type { HeldShell, Sandbox, SandboxDriver } from "../../src/index.ts";
import { adversary, waysToForge } from "./adversary.ts";
import { eventually, processesWith } from "./processes.ts";

const text = (output: Buffer) => output.toString().trim();

/** Perl by what it does to its standard output, which may be a file, a pipe or a socket. */
const spoilsOutput = {
  "does not wait": "use Fcntl; fcntl(STDOUT, F_SETFL, O_WRONLY | O_NONBLOCK)",
  "waits a millisecond": "use Socket; setsockopt(STDOUT, SOL_SOCKET, SO_SNDTIMEO, pack('q2', 0, 1000))",
  "has the smallest room": "use Socket; setsockopt(STDOUT, SOL_SOCKET, SO_SNDBUF, 1); fcntl(STDOUT, 1031, 4096)",
  "is shut": "shutdown(STDOUT, 1)",
  "is shut on both sides": "shutdown(STDOUT, 2)",
  "is full and does not wait":
    "use Fcntl; fcntl(STDOUT, F_SETFL, O_WRONLY | O_NONBLOCK); 1 while syswrite(STDOUT, 'x' x 65536)",
};

/**
 * What the held shell of every driver promises. `first` tells apart its pauses, among test files. Unless `isolates`, nothing
 * is run that attacks whatever it reaches, which would be the tests' host.
 */
export function describeHeldShell(
  name: string,
  make: () => SandboxDriver,
  missing?: string,
  first = 70,
  { isolates = true, isGvisor = false } = {},
): void {
  const pause = (n: number): string => `${first + n}.25`;
  describe.skipIf(missing !== undefined)(
    `held shell of the ${name} driver${missing === undefined ? "" : ` (skipped: ${missing})`}`,
    () => {
      let driver: SandboxDriver;
      let sandbox: Sandbox;
      let shell: HeldShell;
      beforeAll(async () => {
        driver = make();
        sandbox = await driver.open({ memoryBytes: 96 * 2 ** 20, maxProcesses: 40 });
        shell = sandbox.holdShell();
      });
      afterAll(() => driver.close());
      const say = async (program: string, ...args: string[]) => text((await shell.ask({ program, args })).output);

      test("answers many actions in the order in which they were asked (HS1)", async () => {
        const answers = await Promise.all(
          Array.from({ length: 50 }, (_, i) => shell.ask({ program: "echo $(($1))", args: [`${i}*7`] })),
        );
        expect(answers.map(({ status, exitCode, output }) => [status, exitCode, text(output)])).toEqual(
          Array.from({ length: 50 }, (_, i) => ["exited", 0, String(i * 7)]),
        );
      });

      test("arguments are data, whatever they hold, and output comes back byte by byte", async () => {
        const awkward = ["'; echo escaped #", "$(echo substituted)", "two\nlines", "\x1e0 0\n", "ü\\n"];
        for (const argument of awkward) {
          const { output } = await shell.ask({ program: 'printf %s "$1"', args: [argument] });
          expect(output.toString()).toBe(argument);
        }
      });

      test("variables, functions, working folder and errors of an action end with it (HS1); files stay", async () => {
        await say("x=1; cd /; f() { :; }; exit 3");
        expect((await shell.ask({ program: "echo $((1/0))" })).exitCode).not.toBe(0);
        expect((await shell.ask({ program: "if then fi (" })).exitCode).not.toBe(0);
        expect((await shell.ask({ program: "set -- 1; cat; exit 4" })).exitCode).toBe(4);
        await say("echo kept > file");
        expect(await say("echo $(set | grep -c ^x=) $(cat file)")).toBe("0 kept");
      });

      test("an action that hangs, ignores SIGTERM and leaves children ends at its limit, and the next one runs (HS2)", async () => {
        const hanging = await shell.ask({
          program: `trap '' TERM HUP INT; sleep ${pause(1)} & echo begun; while :; do sleep 0.05; done`,
          timeoutMs: 2000,
        });
        // A driver that forbids it to start more before it ends may let it say so, in the words of dash or of BusyBox.
        expect(text(hanging.output).replace(/\n.*(Cannot fork|can't fork: .*)$/, "")).toBe("begun");
        expect([hanging.status, hanging.exitCode]).toEqual(["timeout", null]);
        expect(await eventually(() => processesWith(pause(1)).length === 0)).toBe(true);
        expect(await say("echo alive")).toBe("alive");
      });

      test("endless output ends the action and keeps no more than the limit (HS3)", async () => {
        const endless = await shell.ask({ program: "while :; do echo yes; done", maxOutputBytes: 10_000 });
        expect([endless.status, endless.output.length]).toEqual(["output-limit", 10_000]);
        const exact = await shell.ask({ program: "printf 0123456789", maxOutputBytes: 10 });
        expect([exact.status, text(exact.output)]).toEqual(["exited", "0123456789"]);
        const over = await shell.ask({ program: "printf 01234567890", maxOutputBytes: 10 });
        expect([over.status, text(over.output)]).toEqual(["output-limit", "0123456789"]);
      });

      test("what an action does to its output changes none of later ones (HS5)", async ({ skip }) => {
        if ((await say("command -v perl || :")) === "") skip("its sandboxes have no perl");
        for (const [what, text] of Object.entries(spoilsOutput)) {
          await shell.ask({ program: 'perl -e "$1"', args: [text], timeoutMs: 20_000 });
          const next = await shell.ask({ program: "sleep 0.05; head -c 3000000 /dev/zero | tr '\\0' x; echo $?" });
          expect([what, next.status, next.exitCode, next.output.length]).toEqual([what, "exited", 0, 3_000_002]);
        }
      });

      test("HS6 an action has its sandbox alone, and with that its cores: what is to run beside it is refused, and neither waits", async () => {
        const refused = { code: "action.invalid", message: expect.stringMatching(/beside .*; wait for/) };
        const cancel = new AbortController();
        let begin = (): void => {};
        const begun = new Promise<void>((resolve) => {
          begin = resolve;
        });
        const command = ["sh", "-c", "echo; sleep 60"] as const;
        const beside = sandbox.exec({ command, signal: cancel.signal, graceMs: 0, onOutput: () => begin() });
        await begun;
        await expect(shell.ask({ program: "echo own" })).rejects.toMatchObject(refused);
        cancel.abort();
        expect((await beside).status).toBe("cancelled");
        const other = sandbox.holdShell();
        const acting = shell.ask({ program: "sleep 0.2; echo own" });
        await new Promise((resolve) => setImmediate(resolve));
        await expect(sandbox.exec({ command: ["true"] })).rejects.toMatchObject(refused);
        await expect(other.ask({ program: ":" })).rejects.toMatchObject(refused);
        expect(text((await acting).output)).toBe("own");
        expect((await sandbox.exec({ command: ["true"] })).exitCode).toBe(0);
        expect(text((await other.ask({ program: "echo other" })).output)).toBe("other");
        expect(await say("echo own")).toBe("own");
      });

      test.skipIf(!isolates)(
        "HS5 HS6 nothing that ran before an action, or that it left, writes into what later ones print, or changes how they end",
        { timeout: 180_000 },
        async ({ skip }) => {
          if ((await say("command -v python3 || :")) === "") skip("its sandboxes have no python3");
          const attacks = fc.sample(
            fc.record({
              ways: fc.subarray([...waysToForge], { minLength: 1 }),
              hops: fc.boolean(),
              by: fc.constantFrom("command", "command that is cancelled", "action"),
            }),
            5,
          );
          const open = async () => {
            const own = await driver.open({ memoryBytes: 128 * 2 ** 20, maxProcesses: 60 });
            return { own, held: own.holdShell() };
          };
          let { own, held } = await open();
          const attack = async ({ ways, hops, by }: (typeof attacks)[number]) => {
            await held.ask({ program: ":" }); // what waits for the next action is there to be attacked
            const leaves = 'setsid python3 -c "$1" >/dev/null 2>&1 & sleep 0.5';
            const forging = adversary(ways, { hops });
            const limits = { timeoutMs: 3000, graceMs: 0 };
            if (by === "action") await held.ask({ program: leaves, args: [forging], timeoutMs: 3000 });
            else if (by === "command") await own.exec({ command: ["sh", "-c", leaves, "sh", forging], ...limits });
            else await own.exec({ command: ["python3", "-c", forging], ...limits, timeoutMs: 700 });
            const ends = [];
            for (const code of [7, 0]) {
              const program = `sleep 0.1; echo own; exit ${code}`;
              const { status, exitCode, output } = await held.ask({ program, timeoutMs: 30_000 });
              ends.push([status, exitCode, output.toString()]);
            }
            return ends;
          };
          let numHeld = 0;
          for (const drawn of attacks) {
            const ends = await attack(drawn).catch((error: unknown) => {
              // What cannot be ended ends with its sandbox, and nothing is told in its place.
              if (own.loss === undefined) throw error;
              return undefined;
            });
            if (ends !== undefined) {
              expect([drawn, ends]).toEqual([drawn, [7, 0].map((code) => ["exited", code, "own\n"])]);
              numHeld++;
            } else ({ own, held } = await open());
          }
          expect(numHeld, "attacks that did not end their sandbox").toBeGreaterThan(0);
          await own.close();
        },
      );

      test("an action that kills its shell, and one that is cancelled, leave a shell for the next (HS2)", async () => {
        expect([null, 128 + 9]).toContain((await shell.ask({ program: "kill -9 $$; sleep 5" })).exitCode);
        const abort = new AbortController();
        const running = shell.ask({ program: `sleep ${pause(2)}`, signal: abort.signal });
        setTimeout(() => abort.abort(), 100);
        expect((await running).status).toBe("cancelled");
        expect((await shell.ask({ program: ":", signal: abort.signal })).status).toBe("cancelled");
        expect(await eventually(() => processesWith(pause(2)).length === 0)).toBe(true);
        expect(await say("echo alive")).toBe("alive");
      });

      test.skipIf(availableParallelism() < 2 || isGvisor)("an action runs on the cores it was given", async () => {
        const see = async (cores: number[]) => text((await shell.ask({ program: "nproc", cores })).output);
        expect([await see([1]), await see([0, 1]), await see([0])]).toEqual(["1", "2", "1"]);
      });

      test("closing the sandbox ends the shell and what it runs", async () => {
        const other = await driver.open();
        const held = other.holdShell();
        const running = held.ask({ program: `sleep ${pause(3)}` });
        // gVisor's processes are none of this machine.
        if (isGvisor) expect(await say("echo runs")).toBe("runs");
        else expect(await eventually(() => processesWith(pause(3)).length > 0)).toBe(true);
        await other.close();
        expect((await running).status).toBe("cancelled");
        expect(processesWith(pause(3))).toEqual([]);
        await expect(held.ask({ program: ":" })).rejects.toMatchObject({ code: "sandbox.failed" });
      });
    },
  );
}
