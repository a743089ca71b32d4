/** What the pool sees of a run's process, with a system that answers and with one that has no file descriptors left. */
import { spawn } from "node:child_process";
import { once } from "node:events";
import { pooledRunVariable } from "@treadle/contracts";
import { afterEach, describe, expect, test, vi } from "vitest";
import { endMarked } from "../../src/node/descendants.ts";
import { hasStartedAgain, markThisProcess, runProcesses, thisMachine } from "../../src/pool/run-process.ts";

const system = vi.hoisted(() => ({ isExhausted: false }));
vi.mock("node:fs", async (original) => {
  const fs = await original<typeof import("node:fs")>();
  const failing =
    <F extends (...all: never[]) => unknown>(act: F) =>
    (...all: Parameters<F>) => {
      if (system.isExhausted && String(all[0]).startsWith("/proc")) {
        throw Object.assign(new Error("too many open files"), { code: "EMFILE" });
      }
      return act(...all);
    };
  return { ...fs, readFileSync: failing(fs.readFileSync), readdirSync: failing(fs.readdirSync) };
});

afterEach(() => {
  system.isExhausted = false;
  delete process.env[pooledRunVariable];
});

describe.runIf(process.platform === "linux")("a process", () => {
  test("proves by its mark that it is the one, and is there until another start has its id (PS2)", () => {
    const own = markThisProcess();
    expect([runProcesses.proves(own), runProcesses.look(own)]).toEqual([true, "there"]);
    expect(runProcesses.all()).toContainEqual({ pid: own.pid, mark: own.mark });
    expect(runProcesses.proves({ ...own, mark: crypto.randomUUID() })).toBe(false);
    expect(runProcesses.look({ ...own, startedTicks: own.startedTicks + 1 })).toBe("gone");
    expect(runProcesses.look({ ...own, pid: 2 ** 22 + 1 })).toBe("gone");
  });

  test("counts as gone only when the system says so (PS2)", async () => {
    const own = markThisProcess();
    const mark = crypto.randomUUID();
    const child = spawn("sleep", ["1000"], { env: { ...process.env, [pooledRunVariable]: mark } });
    await once(child, "spawn");
    system.isExhausted = true;
    expect(runProcesses.look(own)).toBe("unknown");
    expect(() => runProcesses.all()).toThrow("too many open files");
    let isOver = false;
    const ended = endMarked(pooledRunVariable, mark).then(() => {
      isOver = true;
    });
    await new Promise((resolve) => setTimeout(resolve, 300));
    expect([isOver, child.exitCode, child.signalCode]).toEqual([false, null, null]);
    system.isExhausted = false;
    await ended;
    expect(runProcesses.look({ ...own, pid: child.pid as number })).toBe("gone");
  });

  test("is of this machine, container and user; one that has started again is known by what stays (PS7)", () => {
    const [host, , boot, pids, user] = thisMachine().split("/");
    expect([host, boot, pids, user].every((part) => part !== undefined && part !== "")).toBe(true);
    expect(hasStartedAgain("a/id/new/p/0", "a/id/old/p/0")).toBe(true);
    for (const then of ["a/id/new/p/0", "a/id/new/q/0", "b/id/old/p/0", "a/ie/old/p/0"])
      expect(hasStartedAgain("a/id/new/p/0", then)).toBe(false);
    expect(hasStartedAgain("a//new/p/0", "a//old/p/0")).toBe(false);
  });
});
