/** Programs that serve on a port of this machine: real processes, which end as they are asked to, die, or never answer. */
import { spawn } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { Reaper, ServerProgram, type ServerProgramOptions } from "@treadle/transport";
import { afterAll, afterEach, beforeAll, expect, test } from "vitest";
import { isTaken, reservePort } from "../src/programs/reserved-port.ts";

const reaper = new Reaper();
const programs: ServerProgram[] = [];
let folder: string;
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), "treadle-programs-"));
});
afterEach(async () => {
  for (const program of programs.splice(0)) await program.end();
});
afterAll(async () => {
  await reaper.close();
  await rm(folder, { recursive: true, force: true });
});

/** What is served says `ours`. */
const serve = `require("node:http").createServer((_, to) => to.end("ours")).listen(Number(process.argv[1]), "127.0.0.1");`;

function start(source: string, own: Partial<ServerProgramOptions> = {}): ServerProgram {
  const program = new ServerProgram({
    name: "the program",
    command: (port) => ({ program: process.execPath, args: ["-e", source, `${port}`] }),
    environment: process.env,
    probe: async (url, signal) => ((await (await fetch(url, { signal })).text()) === "ours" ? true : "stranger"),
    probed: "/",
    startTimeoutMs: 30_000,
    startTimeoutKey: "startTimeoutMs",
    reaper,
    ...own,
  });
  programs.push(program);
  return program;
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return !/\) Z /.test(readFileSync(`/proc/${pid}/stat`, "utf8"));
  } catch {
    return false;
  }
}

/** Prints the number of a process that it has started, which would go on for ever. */
const parent = `const child = require("node:child_process").spawn(process.execPath, ["-e", "setInterval(() => {}, 1000)"], { stdio: "inherit" });
console.log("child " + child.pid);`;

async function startParent(source = ""): Promise<{ readonly program: ServerProgram; readonly child: number }> {
  let tell!: (pid: number) => void;
  const told = new Promise<number>((resolve) => {
    tell = resolve;
  });
  const onLine = (line: string) => line.startsWith("child ") && tell(Number(line.slice(6)));
  const program = start(parent + serve + source, { onLine });
  await program.ready;
  return { program, child: await told };
}

test("PRG3 it is ready where it answers, and what it prints is told by lines", async () => {
  const lines: string[] = [];
  const source = `process.stdout.write("a\\nb"); setTimeout(() => { process.stdout.write("c\\n"); ${serve} }, 200)`;
  const program = start(source, { onLine: (line) => lines.push(line) });
  const url = await program.ready;
  expect(await (await fetch(url)).text()).toBe("ours");
  await program.end();
  expect(lines).toEqual(["a", "bc"]);
  expect(await program.ended).toBe("ended by signal SIGTERM; it said last: a\nbc");
  await program.end();
});

test("PRG3 one that ends is told at once, with its last words; one that cannot be started, too", async () => {
  const ends = start(`process.stderr.write("x".repeat(9000) + "no such model"); process.exitCode = 3`);
  const error = await ends.ready.catch((cause: Error) => cause as Error);
  expect(error).toMatchObject({
    code: "service.failed",
    message: expect.stringMatching(
      /^the program ended before it answered: it ended with code 3; it said last: x+no such model$/,
    ),
  });
  expect((error as Error).message.length).toBeLessThan(4_200);
  const none = start("", { command: () => ({ program: "no-such-program", args: [] }) });
  await expect(none.ready).rejects.toMatchObject({ code: "service.failed", cause: { code: "ENOENT" } });
  expect(await none.ended).toMatch(/cannot be started/);
});

test("PRG3 one that never answers is ended at its deadline, and one that nobody waits for any more, when that is told", async () => {
  const mute = start("setInterval(() => {}, 1000)", { startTimeoutMs: 700 });
  await expect(mute.ready).rejects.toThrow(
    /did not answer at \/ within 700 ms, and it said .*; raise startTimeoutMs$/s,
  );
  expect(mute.pid).toBeUndefined();
  const caller = new AbortController();
  const left = start("setInterval(() => {}, 1000)", { signal: caller.signal });
  caller.abort(new Error("its caller went away"));
  await expect(left.ready).rejects.toThrow("its caller went away");
  const early = start("setInterval(() => {}, 1000)");
  await early.end();
  await expect(early.ready).rejects.toThrow(/was ended/);
});

test("PRG1 what it has started ends with it: when it is ended, when it dies, and when it ignores that it is asked", async () => {
  const asked = await startParent();
  await asked.program.end();
  expect(isAlive(asked.child)).toBe(false);
  const died = await startParent();
  process.kill(died.program.pid!, "SIGKILL");
  expect(await died.program.ended).toMatch(/^ended by signal SIGKILL; it said last: child/);
  expect(isAlive(died.child)).toBe(false);
  const stopped = await startParent(`process.on("SIGTERM", () => {});`);
  await stopped.program.end();
  expect(isAlive(stopped.child)).toBe(false);
});

test("PRG1 it ends when the process that has started it is killed", async () => {
  const holder = spawn(
    process.execPath,
    ["--import", "tsx", "--conditions=source", fileURLToPath(new URL("support/holds-a-program.ts", import.meta.url))],
    { stdio: ["ignore", "pipe", "inherit"] },
  );
  const pids = await new Promise<number[]>((resolve) => {
    holder.stdout.once("data", (text) => resolve(String(text).trim().split(" ").map(Number)));
  });
  expect(pids.map(isAlive)).toEqual([true, true]);
  holder.kill("SIGKILL");
  while (pids.some(isAlive)) await new Promise((later) => setTimeout(later, 20));
});

test("PRG2 a port that a stranger takes is left to it, and another one is tried", async () => {
  const marker = join(folder, "taken");
  // Once, another program is faster: this one ends, as it cannot have the port.
  const source = `const { existsSync, writeFileSync } = require("node:fs");
    if (existsSync(${JSON.stringify(marker)})) { ${serve} } else {
      writeFileSync(${JSON.stringify(marker)}, process.argv[1]);
      const until = Date.now() + 20000;
      const look = () => { const s = require("node:net").createServer().once("error", () => process.exit(1)).listen(Number(process.argv[1]), "127.0.0.1", () => s.close(() => setTimeout(look, 5))); };
      look();
    }`;
  const program = start(source);
  while (!existsSync(marker) || readFileSync(marker, "utf8") === "") await new Promise((later) => setTimeout(later, 5));
  const port = Number(readFileSync(marker, "utf8"));
  const stranger = createServer((socket) => socket.destroy());
  const take = () =>
    new Promise<boolean>((resolve) => {
      stranger.once("error", () => resolve(false));
      stranger.listen(port, "127.0.0.1", () => resolve(true));
    });
  while (!(await take()));
  const url = await program.ready;
  expect(url).not.toContain(`:${port}`);
  await new Promise((closed) => stranger.close(closed));
});

test("PRG2 one that answers as another program is never taken for it", async () => {
  const program = start(serve.replace("ours", "another's"));
  await expect(program.ready).rejects.toThrow(/found another program on each port that it was given/);
});

test("PRG2 ports are given to one process at a time", async () => {
  const held = await Promise.all(Array.from({ length: 50 }, () => reservePort()));
  expect(new Set(held.map(({ port }) => port)).size).toBe(50);
  const [{ port }] = held as [(typeof held)[number]];
  expect(await isTaken(port)).toBe(false);
  const claim = () =>
    new Promise<boolean>((resolve) => {
      const server = createServer();
      server.once("error", () => resolve(false));
      server.listen({ path: `\0treadle-port-${port}` }, () => server.close(() => resolve(true)));
    });
  if (process.platform === "linux") expect(await claim()).toBe(false);
  for (const { release } of held) release();
  expect(await claim()).toBe(true);
});
