import type { RunEvent } from "@treadle/contracts";
import { syntheticRun } from "@treadle/dashboard/testing";
import { fold, initialState } from "@treadle/dashboard/view";
import { expect, it } from "vitest";
import { PlainLines } from "../src/view/plain.ts";

function linesOf(events: readonly RunEvent[]): string[] {
  const plain = new PlainLines();
  let state = initialState;
  return events.flatMap((event) => {
    state = fold(state, event);
    return plain.lines(event, state);
  });
}

it("gives every step of a short run a line, aligned", () => {
  const steps = linesOf(syntheticRun({ steps: 12 })).filter((line) => / {2}step +\d+\/12/.test(line));
  expect(steps).toHaveLength(12);
  expect(new Set(steps.map((line) => line.indexOf("reward"))).size).toBe(1);
  expect(steps[0]).toMatch(/step {2}1\/12 {2}reward +0\.\d+ .*tokens\/s/);
});

it("says the start, deaths, restarts and evaluations, and every phase once", () => {
  const text = linesOf(syntheticRun({ steps: 20, killedInStep: 5 })).join("\n");
  expect(text).toContain("run reasoning-grpo-0042: reasoning-grpo, hybrid, 20 steps");
  expect(text).toContain("rollout/1 died: killed by SIGKILL, out of memory");
  expect(text).toContain("rollout/1 restarted");
  expect(text).toMatch(/evaluation {2}step 0 {2}accuracy 33\.0 %/);
  expect(text.match(/compiling/g)).toHaveLength(1);
});

it("prints with each recovery how long it took, and where the time went", () => {
  const recovery = { detection: 0.9, placement: 0.01, start: 0.8, state: 0.25, redone: 0.44 };
  const [line = ""] = linesOf([{ type: "worker-restarted", atMs: 1e6, worker: "rollout/1", pid: 7, recovery }]);
  expect(line.slice(10)).toBe(
    "rollout/1 restarted in 2.4 s (detection 0.9, placement 0.0, start 0.8, state 0.3, redone 0.4)",
  );
});

it("does not flood a log with thousands of fast steps, and keeps the last one", () => {
  const lines = linesOf(syntheticRun({ steps: 5000, stepMs: 20 })).filter((line) => line.includes("  step "));
  expect(lines.length).toBeLessThan(100);
  expect(lines.some((line) => line.includes("step 5000/5000"))).toBe(true);
});

it("limits warnings and says how many it left out", () => {
  const logs = Array.from(
    { length: 500 },
    (_, i): RunEvent => ({ type: "log", atMs: 1e6 + i * 200, worker: "a/0", line: `w${i}`, level: "warn" }),
  );
  const lines = linesOf(logs);
  expect(lines.length).toBeLessThan(70);
  expect(lines.some((line) => /270 more warnings of workers are in their log files/.test(line))).toBe(true);
});

it("does not send a reader to the workers' log files for what the runner itself has said, as of strangers it refuses", () => {
  const logs = Array.from({ length: 500 }, (_, i): RunEvent => {
    const line = `a connection from '10.0.0.${i % 256}' was refused`;
    return { type: "log", atMs: 1e6 + i * 200, worker: "runner", line, level: "warn" };
  });
  const lines = linesOf(logs);
  expect(lines.some((line) => /270 more of the runner are in the run's 'events.jsonl'/.test(line))).toBe(true);
  expect(lines.some((line) => line.includes("log files"))).toBe(false);
});

it("says what goes on where nothing else is said, each time for twice as long", () => {
  const quiet: RunEvent[] = Array.from({ length: 120 }, (_, second) => ({
    type: "queue",
    atMs: 1e6 + second * 1000,
    channel: "episodes",
    depth: 0,
  }));
  const imitation: RunEvent = { type: "phase", atMs: 1e6, name: "imitation" };
  const lines = linesOf([imitation, ...quiet]).map((line) => line.slice(10));
  expect(lines).toEqual([
    "imitation",
    ...["15.0 s", "30.0 s", "1m 00s"].map((took) => `imitation goes on, ${took} after the last line`),
  ]);
});

it("says how far a phase has come, and no more often than a step", () => {
  const parts = Array.from({ length: 101 }, (_, done): RunEvent => {
    return { type: "phase", atMs: 1e6 + done * 200, name: "imitation", done, total: 100 };
  });
  const lines = linesOf(parts).map((line) => line.slice(10));
  expect(lines).toEqual(["imitation", ...[25, 50, 75, 100].map((done) => `imitation  ${done}/100`)]);
});

it("shows one episode of a step that was sampled, whatever stands in it", () => {
  const sample = (worker: string, step: number, text: string): RunEvent => ({
    type: "sample",
    ...{ atMs: 1e6 + step * 10_000, step, worker, reward: 0.5, prompt: "12+34=", text },
  });
  const lines = linesOf([
    sample("rollout/0", 1, "4\n6"),
    sample("rollout/1", 1, "9"),
    sample("rollout/1", 10, "\u001b[2J46"),
  ]);
  expect(lines.map((line) => line.slice(10))).toEqual([
    "sample  step 1  12+34= → 4 6  reward 0.50",
    "sample  step 10  12+34= → 46  reward 0.50",
  ]);
});

it("shows metrics of one's own beside reward and loss", () => {
  const metrics = { reward: 0.5, toolCalls: 3, solved: 0.25, tokens: 100 };
  const [line] = linesOf([{ type: "step-finished", atMs: 1e6, step: 1, seconds: 2, metrics, tokens: 100 }]);
  expect(line).toMatch(/reward +0\.5\S* +toolCalls +3\S* +solved +0\.25/);
  expect(line).not.toMatch(/tokens +100/);
});
