import { TreadleError, toErrorRecord } from "@treadle/contracts";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { type Death, type SupervisionLimits, SupervisorState } from "../../src/ranks/supervisor-state.ts";

const limits: SupervisionLimits = { maxRestarts: 2, restartWindowMs: 1000, heartbeatTimeoutMs: 100, stallMs: 50 };
const death = (worker = "rollout/0", more: Partial<Death> = {}): Death => ({
  worker,
  component: worker.split("/")[0] as string,
  code: null,
  signal: "SIGKILL",
  failure: undefined,
  logTail: ["last words"],
  ...more,
});

test("S3: while a worker starts nothing stands still, and afterwards the wait begins anew", () => {
  const supervisor = new SupervisorState(limits, 0);
  supervisor.starting("rollout/0");
  supervisor.starting("rollout/1");
  expect(supervisor.tick(10_000)).toEqual([]);
  supervisor.watch("rollout/0", 10_000);
  expect(supervisor.tick(10_050)).toEqual([]);
  supervisor.died(death("rollout/1"), "rank", 10_060);
  expect(supervisor.tick(10_100)).toEqual([]);
  expect(supervisor.tick(10_111)).toContainEqual({ type: "report-stall", stalledMs: 51 });
});

describe("deaths", () => {
  test("S2: within the budget a death restarts what the class says", () => {
    const supervisor = new SupervisorState(limits, 0);
    expect(supervisor.died(death(), "rank", 1)).toMatchObject({ type: "restart", scope: "rank" });
    expect(supervisor.died(death("actor/1"), "group", 2)).toMatchObject({ type: "restart", scope: "group" });
  });

  test("S2: the budget is counted per component, over a sliding window", () => {
    const steps = fc.array(
      fc.record({ afterMs: fc.integer({ min: 0, max: 700 }), rank: fc.integer({ min: 0, max: 2 }) }),
      {
        maxLength: 30,
      },
    );
    fc.assert(
      fc.property(steps, (deaths) => {
        const supervisor = new SupervisorState(limits, 0);
        const atMs: number[] = [];
        let nowMs = 10_000;
        for (const { afterMs, rank } of deaths) {
          nowMs += afterMs;
          atMs.push(nowMs);
          const within = atMs.filter((at) => at > nowMs - limits.restartWindowMs).length;
          const decision = supervisor.died(death(`rollout/${rank}`), "rank", nowMs);
          expect(decision.type).toBe(within > limits.maxRestarts ? "fail" : "restart");
          if (decision.type === "fail") expect(decision.cause.code).toBe("worker.gave-up");
          expect(supervisor.died(death(`other-${atMs.length}/0`), "rank", nowMs).type).toBe("restart");
        }
      }),
      { numRuns: 100 },
    );
  });

  test("S2: losses of nodes never end a run, and starts that do not reach the runner only in a long row", () => {
    const lost = { code: "node.lost", message: "gone", details: { node: "n" } };
    const unreached = { code: "runner.unreachable", message: "no way in" };
    const drawn = fc.array(fc.constantFrom("lost", "unreached", "up"), { maxLength: 200 });
    fc.assert(
      fc.property(drawn, (ends) => {
        const supervisor = new SupervisorState({ ...limits, maxRestarts: 0 }, 0);
        let inARow = 0;
        for (const end of ends) {
          if (end === "up") supervisor.watch("a/0", 1);
          inARow = end === "up" ? 0 : end === "unreached" ? inARow + 1 : inARow;
          if (end === "up") continue;
          const decision = supervisor.died(death("a/0", { failure: end === "lost" ? lost : unreached }), "rank", 1);
          expect(decision.type).toBe(end === "unreached" && inARow > 5 ? "fail" : "restart");
          if (decision.type === "fail") expect(decision.cause).toMatchObject({ code: "worker.gave-up" });
        }
      }),
    );
  });

  test("S2: what nodes end because they hear nobody ends a run only where no step is finished any more", () => {
    const failure = { code: "node.lost", message: "ended by its node", details: { endedByNode: true } };
    fc.assert(
      fc.property(fc.array(fc.constantFrom("ended", "step"), { maxLength: 100 }), (events) => {
        const supervisor = new SupervisorState({ ...limits, maxRestarts: 0 }, 0);
        let inARow = 0;
        for (const event of events) {
          inARow = event === "step" ? 0 : inARow + 1;
          if (event === "step") supervisor.stepFinished(1);
          else
            expect(supervisor.died(death("a/0", { failure }), "rank", 1).type).toBe(inARow > 10 ? "fail" : "restart");
        }
      }),
    );
  });

  test("S2: a crash counts until a step that began after it is finished, and no longer than the window", () => {
    const event = fc.record({
      afterMs: fc.integer({ min: 1, max: 300 }),
      type: fc.constantFrom("crash", "begin", "finish"),
    });
    fc.assert(
      fc.property(fc.array(event, { maxLength: 100 }), (events) => {
        const supervisor = new SupervisorState(limits, 0);
        let crashes: number[] = [];
        let begunMs = 0;
        let nowMs = 0;
        for (const { afterMs, type } of events) {
          nowMs += afterMs;
          if (type === "begin") begunMs = nowMs;
          if (type === "finish") {
            supervisor.stepFinished(begunMs);
            crashes = crashes.filter((atMs) => atMs > begunMs);
          }
          if (type !== "crash") continue;
          crashes = [...crashes.filter((atMs) => atMs > nowMs - limits.restartWindowMs), nowMs];
          const { type: decided } = supervisor.died(death(), "rank", nowMs);
          expect(decided).toBe(crashes.length > limits.maxRestarts ? "fail" : "restart");
        }
      }),
    );
  });

  test("S1: what the process said of its end arrives with code, cause, origin and log tail", () => {
    const failure = toErrorRecord(
      new TreadleError("worker.died", "the engine crashed", {
        cause: new Error("segmentation fault"),
        details: { engine: "x" },
        origin: { method: "train", worker: "somebody" },
      }),
    );
    const { cause } = new SupervisorState(limits, 0).died(death("actor/1", { failure }), "group", 1);
    expect(cause).toMatchObject({ code: "worker.died", message: "the engine crashed", details: { engine: "x" } });
    expect(cause.origin).toMatchObject({ worker: "actor/1", method: "train", logTail: ["last words"] });
    expect((cause.cause as Error).message).toBe("segmentation fault");
  });

  test("S1: giving up names how often, the limit and the last cause", () => {
    const supervisor = new SupervisorState({ ...limits, maxRestarts: 0 }, 0);
    const { type, cause } = supervisor.died(death("actor/1", { code: 7, signal: null }), "rank", 1);
    expect(type).toBe("fail");
    expect(cause.code).toBe("worker.gave-up");
    expect(cause.message).toContain("'1' times");
    expect(cause.message).toContain("ended with exit code 7");
    expect(cause.origin.worker).toBe("actor/1");
    expect((cause.cause as TreadleError).code).toBe("worker.died");
  });

  test.each(["worker.load-failed", "device.out-of-memory", "worker.setup-failed", "checkpoint.corrupt"] as const)(
    "what trying again does not mend fails at once: %s",
    (code) => {
      const failure = toErrorRecord(new TreadleError(code, "no"));
      const decision = new SupervisorState(limits, 0).died(death("a/0", { failure }), "rank", 1);
      expect(decision).toMatchObject({ type: "fail", cause: { code } });
    },
  );

  test("a failure with a code that this version does not know is a failure all the same", () => {
    const failure = { code: "engine.from-the-future", message: "strange" };
    const decision = new SupervisorState(limits, 0).died(death("a/0", { failure }), "rank", 1);
    expect(decision.cause.message).toContain("strange");
    expect(decision.type).toBe("fail");
  });
});

describe("silence and standstill", () => {
  test("S3: a watched worker that is silent is ended once until it is heard of again", () => {
    const supervisor = new SupervisorState({ ...limits, stallMs: 1e9 }, 0);
    supervisor.watch("a/0", 0);
    supervisor.watch("b/0", 0);
    supervisor.heartbeat("b/0", 0, 90);
    expect(supervisor.tick(100)).toEqual([]);
    expect(supervisor.tick(101)).toMatchObject([
      { type: "end-worker", worker: "a/0", cause: { code: "worker.unresponsive" } },
    ]);
    expect(supervisor.tick(150)).toEqual([]);
    supervisor.unwatch("a/0");
    supervisor.unwatch("b/0");
    expect(supervisor.tick(1e6)).toEqual([]);
  });

  test("a heartbeat of a worker that is not watched changes nothing", () => {
    const supervisor = new SupervisorState(limits, 0);
    supervisor.heartbeat("a/0", 10_000, 40);
    expect(supervisor.busyMs("a/0")).toBe(0);
    expect(supervisor.tick(51)).toMatchObject([{ type: "report-stall" }]);
  });

  test("S3: a standstill is reported once, then fails the run after five times as long", () => {
    const supervisor = new SupervisorState(limits, 0);
    const seen: string[] = [];
    for (let nowMs = 0; nowMs <= 260; nowMs += 10)
      for (const { type } of supervisor.tick(nowMs)) seen.push(`${nowMs} ${type}`);
    expect(seen).toEqual(["60 report-stall", "260 fail-stalled"]);
  });

  test("S3: a main thread that computes for longer than stallMs is reported with its stack, and again when that has doubled", () => {
    const supervisor = new SupervisorState({ ...limits, heartbeatTimeoutMs: 1e9 }, 0);
    supervisor.watch("a/0", 0);
    supervisor.watch("b/0", 0);
    const seen: unknown[] = [];
    for (let busyMs = 10; busyMs <= 250; busyMs += 10) {
      supervisor.heartbeat("a/0", busyMs, busyMs, busyMs > 60 ? "score (run.ts:3:1)" : undefined);
      supervisor.heartbeat("b/0", busyMs % 50, busyMs);
      seen.push(...supervisor.tick(busyMs).filter(({ type }) => type === "report-busy"));
    }
    const report = { type: "report-busy", worker: "a/0", stack: "score (run.ts:3:1)" };
    expect(seen).toEqual([
      { ...report, busyMs: 70 },
      { ...report, busyMs: 150 },
    ]);
    // Without a stack, as from a process that cannot be looked into, it is said a little later.
    supervisor.heartbeat("b/0", 5050, 300);
    expect(supervisor.tick(300).filter(({ type }) => type === "report-busy")).toEqual([]);
    supervisor.heartbeat("b/0", 5060, 310);
    expect(supervisor.tick(310)).toMatchObject([{ type: "report-busy", worker: "b/0", busyMs: 5060 }]);
  });

  test("progress, and a main thread that computes, put the standstill off and report the next one anew", () => {
    const supervisor = new SupervisorState(limits, 0);
    supervisor.watch("a/0", 0);
    expect(supervisor.tick(60)).toMatchObject([{ type: "report-stall" }]);
    supervisor.progress(60);
    expect(supervisor.tick(70)).toEqual([]);
    supervisor.heartbeat("a/0", 600, 100);
    expect(supervisor.busyMs("a/0")).toBe(600);
    expect(supervisor.tick(149)).toEqual([]);
    expect(supervisor.tick(151)).toMatchObject([{ type: "report-stall", stalledMs: 51 }]);
  });
});
