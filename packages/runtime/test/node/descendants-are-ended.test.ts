import { spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, mkdirSync, readFileSync } from "node:fs";
import { setTimeout as delay } from "node:timers/promises";
import { expect, test, vi } from "vitest";
import { Descendants, endAbandoned } from "../../src/node/descendants.ts";

/** A process that starts another in a session of its own and ends; the other's number. */
const leave = (descendants: Descendants, keepsEnvironment: boolean): Promise<number> =>
  startAndEnd(descendants, `setsid ${keepsEnvironment ? "" : "env -i"} sleep 600`);

/** The number of what a worker has started by this command when it has ended. */
async function startAndEnd(descendants: Descendants, command: string): Promise<number> {
  const child = spawn("sh", ["-c", `read go; ${command} <&- >&- 2>&- & echo $!`], {
    env: { ...process.env, ...descendants.environment },
    stdio: ["pipe", "pipe", "ignore"],
  });
  descendants.adopt(child.pid as number);
  child.stdin.end("go\n");
  let output = "";
  child.stdout.on("data", (bytes) => {
    output += bytes;
  });
  await once(child, "close");
  return Number(output);
}

const isAlive = (pid: number): boolean => {
  try {
    return process.kill(pid, 0);
  } catch {
    return false;
  }
};

const hasGroups = "TREADLE_WORKER_GROUP" in new Descendants().environment;

const ways = [
  { by: "the mark in its environment", isHere: true, parent: "/nonexistent", keepsEnvironment: true },
  { by: "its control group", isHere: hasGroups, parent: undefined, keepsEnvironment: false },
];

test.for(ways)("NA1: what left its session is found by $by, and nothing else is ended", async (way, { skip }) => {
  const { isHere, parent, keepsEnvironment } = way;
  skip(!isHere, "this process may make no control group");
  const descendants = new Descendants(parent);
  const others = new Descendants(parent);
  const pid = await leave(descendants, keepsEnvironment);
  const other = await leave(others, keepsEnvironment);
  expect(isAlive(pid)).toBe(true);
  await descendants.end();
  await vi.waitUntil(() => !isAlive(pid), { timeout: 20_000 }); // whoever adopted it has reaped it
  expect(isAlive(other)).toBe(true);
  await others.end();
  await vi.waitUntil(() => !isAlive(other), { timeout: 20_000 });
});

test("a group that no process has entered yet stays as long as its agent does, and goes with it", async ({ skip }) => {
  const made = new Descendants();
  const group = made.environment["TREADLE_WORKER_GROUP"];
  if (group === undefined) return skip("this process may make no control group");
  const ended = spawn(process.execPath, ["--version"], { stdio: "ignore" });
  await once(ended, "exit");
  const left = group.replace(`-${process.pid}-`, `-${ended.pid}-`);
  mkdirSync(left);
  await endAbandoned(0);
  expect(existsSync(group)).toBe(true);
  expect(existsSync(left)).toBe(false);
  await made.end();
  expect(existsSync(group)).toBe(false);
});

test("NA1: what moved to a control group of its own below the worker's is ended, and that group removed", async ({
  skip,
}) => {
  const descendants = new Descendants();
  const group = descendants.environment["TREADLE_WORKER_GROUP"];
  if (group === undefined) return skip("this process may make no control group");
  const below = `${group}/one/two`;
  mkdirSync(below, { recursive: true });
  const move = `sh -c 'echo $$ > ${below}/cgroup.procs; exec setsid env -i sleep 600'`;
  const pid = await startAndEnd(descendants, move);
  await vi.waitUntil(() => readFileSync(`${below}/cgroup.procs`, "utf8").trim() !== "", { timeout: 20_000 });
  await descendants.end();
  await vi.waitUntil(() => !isAlive(pid), { timeout: 20_000 }); // whoever adopted it has reaped it
  await vi.waitUntil(
    () => {
      void descendants.end();
      return !existsSync(group);
    },
    { timeout: 20_000 },
  );
});

/** An agent that starts a process which ends with nobody, as one that is stuck, and says its number. */
const agent = `
  const { Descendants } = await import(${JSON.stringify(new URL("../../src/node/descendants.ts", import.meta.url).href)});
  const { spawn } = await import("node:child_process");
  const made = new Descendants();
  const child = spawn("sleep", ["600"], { detached: true, stdio: "ignore", env: { ...process.env, ...made.environment } });
  made.adopt(child.pid);
  console.log(child.pid);
  setInterval(() => {}, 1000);
`;

test("what is left of an agent that was killed is ended, what a living one started is not", async ({ skip }) => {
  skip(new Descendants().environment["TREADLE_WORKER_AGENT"] === undefined, "processes are found in /proc");
  const start = async () => {
    const args = ["--conditions=source", "--import", "tsx", "--input-type=module", "--eval", agent];
    const child = spawn(process.execPath, args, { stdio: ["ignore", "pipe", "inherit"] });
    const [line] = (await once(child.stdout, "data")) as [Buffer];
    return { child, started: Number(line.toString()) };
  };
  const [dead, living] = await Promise.all([start(), start()]);
  dead.child.kill("SIGKILL");
  await once(dead.child, "exit");
  expect(isAlive(dead.started)).toBe(true);
  await endAbandoned(50);
  await vi.waitUntil(() => !isAlive(dead.started), { timeout: 20_000 });
  await delay(100);
  expect(isAlive(living.started)).toBe(true);
  living.child.kill("SIGKILL");
  await once(living.child, "exit");
  await endAbandoned(0);
  await vi.waitUntil(() => !isAlive(living.started), { timeout: 20_000 });
});
