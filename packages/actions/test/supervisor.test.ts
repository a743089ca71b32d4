import { existsSync } from "node:fs";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { buffer } from "node:stream/consumers";
import fc from "fast-check";
import { afterEach, beforeEach, expect, test } from "vitest";
import { Supervisor } from "../src/drivers/supervisor.ts";
import { eventually, processesWith } from "./support/processes.ts";

let folder: string;
let numKills: number;
let open: Supervisor[];
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), "treadle-supervisor-"));
  numKills = 0;
  open = [];
});
afterEach(async () => {
  await Promise.all(open.map((supervisor) => supervisor.kill()));
  await rm(folder, { recursive: true });
});

/** In no namespace and no group of its own; the file says how many tasks there are. */
async function supervisorOf(entering: readonly string[], path = process.env["PATH"] ?? "") {
  const [pidFile, tasksFile] = [join(folder, "pid"), join(folder, "tasks")];
  const setTasks = (count: number) => writeFile(tasksFile, `${count}\n`);
  await setTasks(1);
  const supervisor = new Supervisor({
    beginning: ":",
    joining: (command) => ["-c", `echo $$ > ${pidFile}; exec "$@"`, "joining", ...command],
    entering,
    path,
    pipe: join(folder, "pipe"),
    group: {
      tasksFile,
      kill: async () => {
        numKills++;
        await eventually(() => existsSync(pidFile));
        try {
          process.kill(-Number(await readFile(pidFile, "utf8")), "SIGKILL");
        } catch {
          // it has ended
        }
      },
    },
  });
  open.push(supervisor);
  return { supervisor, setTasks };
}

test("SU4 a shell that ends before it has read its program ends its supervisor, and the program is not run", async () => {
  const mark = join(folder, "mark");
  const { supervisor } = await supervisorOf(["/bin/sh", "-c", "exit 5"]);
  expect(await eventually(() => numKills > 0)).toBe(true);
  expect(supervisor.hasEnded).toBe(true);
  const { exited } = supervisor.host(`touch ${mark}`).start();
  expect(await exited.catch(({ code }) => code)).not.toEqual({ code: 0, signal: null });
  expect([numKills, existsSync(mark)]).toEqual([1, false]);
});

/** What may look like a mark: its first byte, and what it is made of. */
const piece = fc.array(fc.constantFrom(1, 1, 1, 0x30, 0x61, 0x66, 0x0a, 0xff), { maxLength: 30 }).map(Buffer.from);

test("SU1 SU2 whatever an action prints, and however its bytes come, is its output, and its status is as it ended", async () => {
  const { supervisor } = await supervisorOf(["/bin/sh"]);
  const file = join(folder, "piece");
  const action = fc.record({ pieces: fc.array(piece, { maxLength: 4 }), status: fc.nat({ max: 99 }) });
  await fc.assert(
    fc.asyncProperty(action, async ({ pieces, status }) => {
      const prints = pieces.map((bytes, i) => writeFile(`${file}${i}`, bytes).then(() => `cat ${file}${i}`));
      const { stdout, exited } = supervisor.host(`${(await Promise.all(prints)).join("; ")}\nexit ${status}`).start();
      expect(await buffer(stdout)).toEqual(Buffer.concat(pieces));
      expect(await exited).toEqual({ code: status, signal: null });
    }),
    { numRuns: 60 },
  );
  expect(numKills).toBe(0);
});

test("SU2 output is there while the action runs, but for what may begin the mark", async () => {
  const { supervisor } = await supervisorOf(["/bin/sh"]);
  const go = join(folder, "go");
  const { stdout, exited } = supervisor
    .host(`printf 'asks? \\001'; until [ -e ${go} ]; do sleep 0.01; done; printf 'b'`)
    .start();
  let printed = "";
  stdout.on("data", (chunk: Buffer) => {
    printed += chunk.toString("latin1");
  });
  expect(await eventually(() => printed === "asks? ")).toBe(true);
  await writeFile(go, "");
  expect(await exited).toEqual({ code: 0, signal: null });
  expect(await eventually(() => printed === "asks? \u0001b")).toBe(true);
});

test("SU2 where the supervisor is not sure to be alone, it asks; what an action prints until then is its output", async () => {
  const { supervisor } = await supervisorOf(["/bin/sh"]);
  await writeFile(join(folder, "tasks"), "01\n"); // one for us, and not for its shell
  for (const status of [0, 3]) {
    const { stdout, exited } = supervisor.host(`(sleep 0.01; echo late) & echo early; wait; exit ${status}`).start();
    expect(String(await buffer(stdout))).toBe("early\nlate\n");
    expect(await exited).toEqual({ code: status, signal: null });
  }
  expect(numKills).toBe(0);
});

test("SU5 an action that lets its output wait for nobody, or closes it, changes nothing of the next one's", async () => {
  const { supervisor } = await supervisorOf(["/bin/sh"]);
  for (const spoils of [`perl -e 'use Fcntl; fcntl(STDOUT, F_SETFL, O_WRONLY | O_NONBLOCK)'`, "exec >&- 2>&-"]) {
    const first = supervisor.host(spoils).start();
    expect(await first.exited).toEqual({ code: 0, signal: null });
    expect((await buffer(first.stdout)).length).toBe(0);
    const next = supervisor.host("head -c 2000000 /dev/zero").start();
    await new Promise((resolve) => setTimeout(resolve, 50)); // it is full, and waits
    expect((await buffer(next.stdout)).length).toBe(2_000_000);
    expect(await next.exited).toEqual({ code: 0, signal: null });
  }
});

test("a supervisor that dies in the midst of an action takes what it left with it, and what was printed is told", async () => {
  const { supervisor } = await supervisorOf(["/bin/sh"]);
  const { stdout, exited } = supervisor.host("sleep 307.25 & echo begun; sleep 308.25").start();
  const printed = buffer(stdout);
  await new Promise((resolve) => stdout.once("data", resolve));
  process.kill(Number(await readFile(join(folder, "pid"), "utf8")), "SIGKILL");
  expect(await exited).toEqual({ code: null, signal: "SIGKILL" });
  expect(String(await printed)).toBe("begun\n");
  expect(await eventually(() => processesWith("307.25").length + processesWith("308.25").length === 0)).toBe(true);
  expect(existsSync(join(folder, "pipe"))).toBe(false);
});

test("where the pipe cannot be made, the action says why", async () => {
  const { supervisor } = await supervisorOf(["/bin/sh"], "/nowhere");
  await expect(supervisor.host("true").start().exited).rejects.toThrow(/a shell did not start: .*mkfifo/);
});

test("SU3 where something of an action lives on, the supervisor ends, and so does the action", async () => {
  const { supervisor, setTasks } = await supervisorOf(["/bin/sh"]);
  await setTasks(2);
  const { stdout, exited } = supervisor.host("echo out").start();
  expect(String(await buffer(stdout))).toBe("out\n");
  expect(await exited).toEqual({ code: null, signal: "SIGKILL" });
  expect([numKills, supervisor.hasEnded]).toEqual([1, true]);
});

test("SU2 an action that leaves its output full, and not to be waited for, ends as it did", async () => {
  const { supervisor } = await supervisorOf(["/bin/sh"]);
  await supervisor.host("true").start().exited; // its pipe is open
  const done = join(folder, "done");
  const fill = `use Fcntl; fcntl(STDOUT, F_SETFL, O_WRONLY | O_NONBLOCK); 1 while syswrite(STDOUT, "x" x 4096);`;
  const { stdout, exited } = supervisor.host(`perl -e '${fill}'; touch ${done}; exit 3`).start();
  stdout.resume();
  // Nothing reads while this thread waits, until after the supervisor has tried to print the mark.
  const untilMs = performance.now() + 60_000;
  while (!existsSync(done) && performance.now() < untilMs) waitHere(10);
  waitHere(100);
  expect(await exited).toEqual({ code: 3, signal: null });
});

test("SU4 what prints before its action does, as it has kept an output, ends the supervisor", async () => {
  const { supervisor } = await supervisorOf(["/bin/sh", "-c", "echo not the beginning; exec /bin/sh"]);
  const { exited } = supervisor.host("exit 0").start();
  expect(await exited.catch(({ code }) => code)).not.toEqual({ code: 0, signal: null });
  expect([numKills, supervisor.hasEnded]).toEqual([1, true]);
});

const waitHere = (ms: number) => Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms);
