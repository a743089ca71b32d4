import { availableParallelism } from "node:os";
import { Readable } from "node:stream";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { ArchiveFilter } from "../../src/archive/archive-filter.ts";
import type { Sandbox, SandboxDriver } from "../../src/index.ts";
import { eventually, processesWith } from "./processes.ts";
import { folder, rawArchive } from "./tar.ts";

const lines = (buffer: Buffer): string[] => buffer.toString().trim().split("\n");

/** What every driver promises. `first` tells apart the pauses by which its processes are found, among test files. */
export function describeDriver(
  name: string,
  make: () => SandboxDriver,
  missing?: string,
  first = 60,
  { isGvisor = false } = {},
): void {
  const pause = (n: number): string => `${first + n}.25`;
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

      test("CG11 DK6 a limit on files is held, or refused", async () => {
        const limit = { memoryBytes: 96 * 2 ** 20, diskBytes: 24 * 2 ** 20 };
        const lacks = driver.diskLacks("a");
        if (lacks !== undefined) {
          await expect(driver.open(limit)).rejects.toMatchObject({
            code: "sandbox.unavailable",
            message: expect.stringContaining(`cannot hold a limit of '${limit.diskBytes}' bytes on files: ${lacks}`),
          });
          return;
        }
        const own = await driver.open(limit);
        const run = async (script: string) => {
          const { stdout } = await own.exec({ command: ["sh", "-c", script], timeoutMs: 60_000 });
          return stdout.toString().trim();
        };
        expect(await run("ls -A; head -c 12m /dev/zero > half && echo written")).toBe("written");
        expect(await run("head -c 40m /dev/zero > whole 2>/dev/null || echo refused")).toContain("refused");
        // What was there stays, and what is removed makes room.
        expect(await run("rm whole; wc -c < half; rm half; head -c 16m /dev/zero > again && echo again")).toBe(
          `${12 * 2 ** 20}\nagain`,
        );
        await own.writeFile("file", "given");
        expect((await own.readFile("file")).toString()).toBe("given");
        await own.close();
      });

      test("folders go in and come out, as the user that commands run as; of one that is aborted nothing is left", async () => {
        const own = await driver.open();
        const { signal } = new AbortController();
        const say = async (text: string): Promise<string> => {
          const { stdout, stderr, exitCode } = await own.exec({ command: ["sh", "-c", text] });
          if (exitCode !== 0) throw new Error(stderr.toString());
          return stdout.toString();
        };
        const filtered = (pieces: readonly Buffer[]): Readable => {
          const filter = new ArchiveFilter({ bytes: 2 ** 20, entries: 100 });
          return Readable.from([...pieces.flatMap((piece) => filter.push(piece)), ...filter.end()]);
        };
        const entries = [
          folder,
          { name: "sub/run", content: "echo ran", mode: 0o755 },
          { name: "l", flag: "2", target: "sub" },
        ];
        for (const place of ["new", "."])
          await own.unpack(place, { isFolder: true, content: filtered([rawArchive(...entries)]) }, signal);
        await own.unpack("deep/file", { isFolder: false, content: filtered([rawArchive({ name: "x" })]) }, signal);
        expect(await say("./l/run; new/l/run; [ -O new/sub/run ] && [ -O deep/file ]; ls -A")).toBe(
          "ran\nran\ndeep\nl\nnew\nsub\n",
        );
        const pieces: Buffer[] = [];
        await own.pack("new", { take: (chunk) => pieces.push(chunk), signal });
        await own.unpack("again", { isFolder: true, content: filtered(pieces) }, signal);
        expect(await say("again/l/run; rm -r l new sub deep again")).toBe("ran\n");
        await expect(own.pack("new", { take: () => {}, signal })).rejects.toMatchObject({ code: "sandbox.failed" });
        await say("head -c 1000000 /dev/zero > big");
        const stop = (): void => {
          throw new Error("enough");
        };
        await expect(own.pack("big", { take: stop, signal })).rejects.toThrow("enough");
        const abort = new AbortController();
        const endless = async function* () {
          yield rawArchive(folder, { name: "a", content: "x".repeat(1000) }).subarray(0, 1024);
          while (!(await say("ls -A")).includes("upload")) await new Promise((resolve) => setTimeout(resolve, 20));
          abort.abort(new Error("gone"));
          await new Promise(() => {});
        };
        const unpacking = own.unpack("half", { isFolder: true, content: Readable.from(endless()) }, abort.signal);
        await expect(unpacking).rejects.toThrow("gone");
        expect(await say("ls -A")).toBe("big\n");
        await own.close();
      });

      test("CD3 what waits for input gets no more when its end is asked for, whoever heard of that", async () => {
        const waits = `trap 'echo cleaned' EXIT; trap 'exit 1' TERM; (trap '' TERM; exec cat)`;
        const abort = new AbortController();
        const endless = async function* () {
          yield "begun\n";
          await new Promise(() => {});
        };
        const { status, stdout } = await sandbox.exec({
          command: ["sh", "-c", waits],
          stdin: Readable.from(endless()),
          signal: abort.signal,
          onOutput: () => abort.abort(),
          graceMs: 5000,
        });
        expect({ status, stdout: stdout.toString() }).toEqual({ status: "cancelled", stdout: "begun\ncleaned\n" });
      });

      test("CD1 CD3 a command that ignores SIGTERM ends at its time limit, with its children", async () => {
        const result = await sandbox.exec({
          command: ["sh", "-c", `trap '' TERM; sleep ${pause(1)} & while :; do sleep 0.05; done`],
          timeoutMs: 150,
          graceMs: 150,
        });
        expect(result.status).toBe("timeout");
        expect(result.exitCode).toBe(null);
        expect(await eventually(() => processesWith(pause(1)).length === 0)).toBe(true);
      });

      test("CD3 a command that heeds SIGTERM may finish what it does", async () => {
        const result = await sandbox.exec({
          command: ["sh", "-c", "trap 'echo report; exit 0' TERM; while :; do sleep 0.02; done"],
          timeoutMs: 1500,
          graceMs: 20_000,
        });
        expect([result.status, result.stdout.toString()]).toEqual(["timeout", "report\n"]);
      });

      test("CD2 endless output ends the command and keeps no more than the limit", async () => {
        const result = await sandbox.exec({ command: ["yes"], maxOutputBytes: 10_000 });
        expect([result.status, result.stdout.length]).toEqual(["output-limit", 10_000]);
      });

      test("CD1 what a command leaves in the background ends with it", async () => {
        const result = await sandbox.exec({ command: ["sh", "-c", `sleep ${pause(2)} & echo started`] });
        expect([result.status, result.exitCode]).toEqual(["exited", 0]);
        expect(await eventually(() => processesWith(pause(2)).length === 0)).toBe(true);
      });

      test("an abort ends it", async () => {
        const abort = new AbortController();
        const running = sandbox.exec({ command: ["sleep", pause(3)], signal: abort.signal });
        setTimeout(() => abort.abort(), 100);
        expect((await running).status).toBe("cancelled");
      });

      test("a program that does not exist is an exit code, or a clear failure, never a hang", async () => {
        expect((await sandbox.exec({ command: ["no-such-program"] })).exitCode).toBe(127);
      });

      test("what no process can be told is refused, and the longest limit is no limit that has passed", async () => {
        for (const bad of [{ command: ["echo", "a\0b"] }, { command: ["true"], environment: { "A=B": "" } }] as const)
          await expect(sandbox.exec({ ...bad })).rejects.toMatchObject({ code: "action.invalid" });
        const patient = { timeoutMs: Number.POSITIVE_INFINITY };
        expect((await sandbox.exec({ command: ["sleep", "0.1"], ...patient })).status).toBe("exited");
        expect((await sandbox.holdShell().ask({ program: "sleep 0.1", ...patient })).status).toBe("exited");
      });

      // gVisor tells all cores that it began with, whatever it may use.
      test.skipIf(availableParallelism() < 2 || isGvisor)("a command sees the cores it was given", async () => {
        const see = async (cores: number[]) =>
          (await sandbox.exec({ command: ["nproc"], cores })).stdout.toString().trim();
        expect([await see([1]), await see([0, 1])]).toEqual(["1", "2"]);
      });

      describe("SN1 SN2 a snapshot", () => {
        const limits = { maxBytes: 2 ** 26 };
        const make = `mkdir -p 'a b/.deep' && echo one > 'a b/.deep/file' && chmod 750 'a b' && ln -s file 'a b/.deep/link' &&
ln -s /etc/passwd out && echo hidden > .hidden && mkfifo pipe && head -c 100000 /dev/zero > big`;
        // gVisor's pipes are not on the disk.
        const look = `cat 'a b/.deep/link' .hidden; readlink out; stat -c %a 'a b'; wc -c < big; ${isGvisor ? "echo pipe" : "[ -p pipe ] && echo pipe"}`;
        const say = async (one: Sandbox, text: string) => {
          const { stdout, stderr, exitCode } = await one.exec({ command: ["sh", "-c", text] });
          if (exitCode !== 0) throw new Error(stderr.toString());
          return stdout.toString();
        };

        test("is of all files, and what begins from it shares nothing with it", async () => {
          const first = await driver.open();
          await say(first, make);
          await say(first, `mkdir -p ${first.stateFolder} && echo kept > ${first.stateFolder}/state`);
          const snapshot = await first.snapshot(limits);
          expect(snapshot.bytes).toBeGreaterThan(100_000);
          await say(first, "rm -rf -- *; echo changed > .hidden");
          await first.close();
          const both = await Promise.all([driver.open({ from: snapshot }), driver.open({ from: snapshot })]);
          for (const one of both) {
            expect(await say(one, look)).toBe("one\nhidden\n/etc/passwd\n750\n100000\npipe\n");
            expect(await say(one, `cat ${one.stateFolder}/state`)).toBe("kept\n");
            await say(one, "echo own > .hidden; rm -r 'a b'");
          }
          const third = await driver.open({ from: snapshot });
          expect(await say(third, "cat .hidden 'a b/.deep/file'")).toBe("hidden\none\n");
          const second = await third.snapshot(limits);
          for (const one of [...both, third]) await one.close();
          const last = await driver.open({ from: second });
          expect(await say(last, "cat .hidden")).toBe("hidden\n");
          await last.close();
          for (const one of [snapshot, second]) await one.drop();
        });

        test("is refused while something runs and beyond its size; what comes meanwhile waits", async () => {
          const own = await driver.open();
          const running = own.exec({ command: ["sh", "-c", "until [ -e go ]; do sleep 0.02; done"] });
          await expect(own.snapshot(limits)).rejects.toMatchObject({
            code: "action.invalid",
            message: expect.stringMatching(/of files at rest, and 1 command runs; wait for their end, or cancel them/),
          });
          await own.writeFile("go", "");
          await running;
          await own.writeFile("big", Buffer.alloc(300_000));
          await expect(own.snapshot({ maxBytes: 200_000 })).rejects.toMatchObject({
            code: "action.invalid",
            message: expect.stringMatching(/more than the 200000 bytes that a snapshot may still have; remove some/),
          });
          const copying = own.snapshot(limits);
          const late = own.exec({ command: ["sh", "-c", "echo late > late"] });
          const snapshot = await copying;
          expect((await late).exitCode).toBe(0);
          const other = await driver.open({ from: snapshot });
          expect(await say(other, "ls")).toBe("big\ngo\n");
          const again = own.snapshot(limits);
          const acting = own.holdShell().ask({ program: "echo held > held" });
          const second = await again;
          expect((await acting).exitCode).toBe(0);
          const third = await driver.open({ from: second });
          expect(await say(third, "ls")).toBe("big\ngo\nlate\n");
          await third.close();
          await second.drop();
          const closing = other.snapshot(limits).catch((error: unknown) => error);
          await other.close();
          await closing;
          await own.close();
          await snapshot.drop();
          const foreign = { bytes: 0, drop: async () => {} };
          await expect(driver.open({ from: foreign })).rejects.toMatchObject({ code: "action.invalid" });
        });
      });

      test("a closed sandbox refuses commands and ends those that run", async () => {
        const other = await driver.open();
        const running = other.exec({ command: ["sleep", pause(4)] });
        await new Promise((resolve) => setTimeout(resolve, 100));
        await other.close();
        expect((await running).status).toBe("cancelled");
        await expect(other.exec({ command: ["true"] })).rejects.toMatchObject({ code: "sandbox.failed" });
        expect(processesWith(pause(4))).toEqual([]);
      });
    },
  );
}
