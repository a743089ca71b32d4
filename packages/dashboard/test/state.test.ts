import { RunEvent } from "@treadle/contracts";
import { describe, expect, it } from "vitest";
import { startMs, syntheticRun } from "../src/testing/index.ts";
import { fold, initialState, type RunState, recentTokensPerSecond, secondsLeft } from "../src/view/state.ts";

const foldAll = (events: readonly RunEvent[], from = initialState) => events.reduce(fold, from);

describe("folding a run's events", () => {
  it("ends with what the run came to", () => {
    const state = foldAll(syntheticRun({ steps: 60, killedInStep: 30 }));
    expect(state).toMatchObject({
      runId: "reasoning-grpo-0042",
      step: 60,
      numSteps: 60,
      restarts: 1,
      policyVersion: 60,
    });
    expect(state.summary?.evalAfter).toBe(0.81);
    expect(state.accuracy.first).toEqual({ step: 0, value: 0.33 });
    expect(state.checkpoint?.step).toBe(60);
    expect(state.waits).toEqual({});
    expect(state.workers["rollout/1"]).toEqual({ status: "running", pid: 4103, restarts: 1 });
    expect(state.notices.map(({ text }) => text)).toEqual([
      "rollout/1 died: killed by SIGKILL, out of memory",
      "rollout/1 restarted",
    ]);
  });

  it("changes no earlier state, and is the same from a recording (DV1)", () => {
    const recorded = syntheticRun({ steps: 5 }).map((event) => RunEvent.parse(JSON.parse(JSON.stringify(event))));
    const freeze = (state: RunState) => {
      for (const value of Object.values(state)) Object.freeze(value);
      return Object.freeze(state);
    };
    const frozen = recorded.reduce((state, event) => freeze(fold(state, event)), freeze({ ...initialState }));
    expect(frozen).toEqual(foldAll(syntheticRun({ steps: 5 })));
  });

  it("stays small however long the run is (DV2)", () => {
    const state = foldAll(syntheticRun({ steps: 3000, killedInStep: 7 }));
    expect(JSON.stringify(state).length).toBeLessThan(40_000);
    expect(state.reward.points.length).toBeLessThanOrEqual(256);
    expect(state.reward.first?.step).toBe(1);
    expect(state.reward.last?.step).toBe(3000);
  });

  it("starts at the step that an earlier runner left", () => {
    const started: RunEvent = {
      type: "run-started",
      atMs: 0,
      runId: "a",
      workflow: "w",
      mode: "spatial",
      steps: 10,
      folder: "f",
      resumedFrom: 4,
    };
    expect(foldAll([started])).toMatchObject({ step: 4, notices: [{ text: "resumed after step 4" }] });
  });

  it("shows warnings of workers, once when they repeat at once, and no chatter", () => {
    const log = (level: "info" | "warn", atMs: number): RunEvent => ({
      type: "log",
      atMs,
      worker: "a/0",
      line: "slow",
      level,
    });
    const state = foldAll([log("info", 0), log("warn", 1), log("warn", 2), log("warn", 5000)]);
    expect(state.notices.map(({ atMs }) => atMs)).toEqual([1, 5000]);
  });

  it("says of each recovery how long it took, and where the time went", () => {
    const restarted: RunEvent = { type: "worker-restarted", atMs: 0, worker: "rollout/1", pid: 7 };
    const recovery = { detection: 0.9, placement: 0.01, start: 0.8, state: 0.25, redone: 0.44 };
    const noticesOf = (event: RunEvent) => foldAll([event]).notices.map(({ level, text }) => [level, text]);
    expect(noticesOf({ ...restarted, reason: "it was killed", recovery })).toEqual([
      [
        "good",
        "rollout/1 restarted: it was killed in 2.4 s (detection 0.9, placement 0.0, start 0.8, state 0.3, redone 0.4)",
      ],
    ]);
    expect(noticesOf({ ...restarted, recovery: { ...recovery, detection: 12.34 } })[0]?.[1]).toBe(
      "rollout/1 restarted in 13.8 s (detection 12.3, placement 0.0, start 0.8, state 0.3, redone 0.4)",
    );
    expect(noticesOf(restarted)[0]?.[1]).toBe("rollout/1 restarted");
  });

  it("estimates from the last steps", () => {
    expect(secondsLeft(initialState)).toBeUndefined();
    expect(recentTokensPerSecond(initialState)).toBeUndefined();
    const step: RunEvent = { type: "step-finished", atMs: startMs, step: 1, seconds: 2, tokens: 500, metrics: {} };
    const state = fold({ ...initialState, numSteps: 11 }, step);
    expect(secondsLeft(state)).toBe(20);
    expect(recentTokensPerSecond(state)).toBe(250);
  });

  it("keeps curves free of what is no number, and still shows it", () => {
    const step: RunEvent = {
      type: "step-finished",
      atMs: 0,
      step: 1,
      seconds: 2,
      tokens: 0,
      metrics: { reward: Number.NaN },
    };
    const state = fold(initialState, step);
    expect(state.reward.last).toBeUndefined();
    expect(state.metrics.reward).toBeNaN();
  });
});
