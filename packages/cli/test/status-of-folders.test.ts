import { initialState, type RunNow } from "@treadle/dashboard/view";
import { expect, test } from "vitest";
import { renderLocalStatus, renderStatus } from "../src/view/status.ts";

const running: RunNow = {
  runId: "a",
  phase: "running",
  remedy: undefined,
  summary: undefined,
  damages: [],
  state: {
    ...initialState,
    mode: "spatial",
    step: 3,
    numSteps: 9,
    placement: [
      { component: "rollout", devices: ["cpu:0", "cpu:1"], mode: "spatial" },
      { component: "actor", devices: ["cpu:2"], mode: "spatial" },
    ],
    workers: {
      "rollout/0": { status: "running", pid: 1, restarts: 0 },
      "rollout/1": { status: "dead", pid: undefined, restarts: 1 },
      "actor/0": { status: "running", pid: 2, restarts: 0 },
    },
    queues: {
      episodes: { depth: 4, capacity: undefined, peak: 5 },
      prompts: { depth: 0, capacity: undefined, peak: 1 },
    },
    waits: { "actor/0": { on: "channel 'episodes'", sinceMs: 1 } },
  },
};

test("a run under way shows its step, its workers, what queues and who waits for whom", () => {
  expect(renderLocalStatus("/runs", [running]).split("\n")).toEqual([
    "runs in '/runs'",
    "  a: step 3 of 9, spatial, 0 restarts",
    "    rollout          2 workers on cpu:0-1, rollout/1 is dead",
    "    actor            1 workers on cpu:2",
    "    channel episodes: 4 items",
    "    actor/0 waits for channel 'episodes'",
    "",
  ]);
});

test("where none is under way, it says how the newest ended and what to do about it", () => {
  const ended = { ...running, phase: "interrupted", remedy: "go on with: treadle resume a" } as const;
  expect(renderLocalStatus("/runs", [ended])).toContain(
    "the newest, a, interrupted at step 3: go on with: treadle resume a",
  );
  expect(renderLocalStatus("/runs", [])).toContain("none; start one with 'treadle run'");
});

test("a run whose runner is gone is shown, however many have ended after it", () => {
  const info = { workflow: "w", host: "h", pid: 1, startedAt: "2026-01-01T00:00:00Z" };
  const gone = { ...info, runId: "gone", state: "running" as const, step: 7 };
  const later = Array.from({ length: 9 }, (_, at) => ({
    ...info,
    runId: `later-${at}`,
    state: "finished" as const,
    step: 2,
  }));
  const shown = renderStatus({ nodes: [], runs: [], ended: [gone, ...later] });
  expect(shown).toContain("ended\n  gone: its runner is gone, step 7\n  later-4: finished, step 2\n");
  expect(shown).not.toContain("later-3");
});
