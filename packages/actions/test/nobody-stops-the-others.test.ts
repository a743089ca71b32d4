/** What one client says, or one command does, leaves the service to the others. */
import { EventEmitter } from "node:events";
import { PassThrough } from "node:stream";
import { TreadleError } from "@treadle/contracts";
import { ManualClock, settle } from "@treadle/contracts/testing";
import { expect, test } from "vitest";
import { runCommand } from "../src/drivers/command.ts";
import { Leases } from "../src/grpc/leases.ts";
import { DiskBudget } from "../src/grpc/output-spool.ts";
import { RepeatableActions } from "../src/grpc/repeatable-actions.ts";
import { ActionPool, CgroupDriver, CpuManager, cgroupDriverLacks, QuotaManager } from "../src/index.ts";
import { guardMemory } from "../src/pool/memory-guard.ts";

test("no Retry-After of one client stops a quota for good", async () => {
  const clock = new ManualClock();
  const pool = new ActionPool({ managers: [new QuotaManager("search", { concurrency: 4 })], clock });
  const leases = new Leases(pool);
  const first = leases.acquire({ id: "a", kind: "k", cost: { search: 1 } }, () => {});
  await settle();
  leases.release("a", { httpStatus: 429, retryAfter: "1e306" });
  await first.result;
  let isGranted = false;
  leases.acquire({ id: "b", kind: "k", tenant: "other", cost: { search: 1 } }, () => {
    isGranted = true;
  });
  await clock.advance(601_000);
  expect(isGranted).toBe(true);
  leases.release("b", { httpStatus: 200, retryAfter: "" });
  await pool.close();
});

test("a tenant may have any name", async () => {
  const clock = new ManualClock();
  const nodes = [{ id: "n", numa: [[0]], memoryBytes: 1000 }];
  const pool = new ActionPool({ managers: [new CpuManager({ nodes })], clock });
  const held = pool.submit({ kind: "k", tenant: "__proto__", cost: { cpu: 1 } }, () => clock.sleep(10));
  try {
    expect(Object.keys(pool.tenants())).toEqual(["__proto__"]);
    expect("running" in {} || "waiting" in {}).toBe(false);
  } finally {
    for (const key of ["running", "waiting"]) delete (Object.prototype as Record<string, unknown>)[key];
    await clock.advance(20);
    await held.result;
    await pool.close();
  }
});

test("IK1 of what a request has as input its bytes are compared, and no number is made of each", () => {
  const repeatable = new RepeatableActions(1000);
  const call = () => Object.assign(new EventEmitter(), { write: () => true, end: () => {} }) as never;
  const requestOf = (text: string) => {
    const toJSON = () => {
      throw new Error("numbers were made of it");
    };
    return { environment: { B: "2", A: "1" }, stdin: Object.assign(Buffer.from(text), { toJSON }) };
  };
  const first = { tenant: "t", key: "k", request: requestOf("same"), budget: new DiskBudget(1) };
  repeatable.begin(first, call(), () => {});
  expect(repeatable.join("t", "k", { ...requestOf("same"), environment: { A: "1", B: "2" } }, call())).toBe("joined");
  expect(repeatable.join("t", "k", requestOf("other"), call())).toBe("another-request");
  repeatable.close();
});

test("CD4 a command that does not end after SIGKILL fails, and ends nothing else", async () => {
  const [stdin, stdout, stderr] = [new PassThrough(), new PassThrough(), new PassThrough()];
  const stuck = new TreadleError("sandbox.failed", "processes did not end after SIGKILL");
  const host = {
    start: () => ({ stdin, stdout, stderr, exited: new Promise<never>(() => {}) }),
    signal: () => {},
    kill: () => Promise.reject(stuck),
  };
  await expect(runCommand(host, { timeoutMs: 1, graceMs: 0 })).rejects.toBe(stuck);
});

test("a trajectory that cannot be ended keeps nobody from looking again", async () => {
  const clock = new ManualClock();
  const cpu = new CpuManager({ nodes: [{ id: "n", numa: [[0]], memoryBytes: 1000 }] });
  let looks = 0;
  const actions = {
    usedBytes: () => {
      looks++;
      throw new Error("the group is gone");
    },
  };
  const stop = guardMemory({
    actions: actions as never,
    cpu,
    clock,
    memory: () => new Map([["n", { reserveBytes: 10, availableBytes: 1 }]]),
  });
  for (let i = 0; i < 3; i++) await clock.advance(250);
  stop();
  expect(looks).toBeGreaterThan(1);
});

test.skipIf(cgroupDriverLacks() !== undefined)(
  "CG6 nothing that a command has planted is run before rights are given up, whatever this process's PATH",
  async () => {
    const before = process.env.PATH;
    process.env.PATH = `/work/project/node_modules/.bin:${before}`; // as npx has it, in a project at /work/project
    const driver = new CgroupDriver();
    try {
      const sandbox = await driver.open();
      const planted = `mkdir -p /work/project/node_modules/.bin && cd /work/project/node_modules/.bin || exit 1
for program in setsid setpriv env; do
  printf '#!/bin/sh\\nid -u >> /work/who; chmod 666 /work/who\\nexec /usr/bin/%s "$@"\\n' $program > $program && chmod +x $program
done`;
      expect((await sandbox.exec({ command: ["sh", "-c", planted] })).exitCode).toBe(0);
      for (let i = 0; i < 3; i++) expect((await sandbox.exec({ command: ["true"] })).exitCode).toBe(0);
      const who = await sandbox.exec({ command: ["sh", "-c", "cat /work/who 2>/dev/null"] });
      expect(who.stdout.toString()).toBe("");
    } finally {
      process.env.PATH = before;
      await driver.close();
    }
  },
);
