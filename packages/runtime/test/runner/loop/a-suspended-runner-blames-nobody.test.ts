import { SupervisionConfig } from "@treadle/contracts";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { RunnerLoop } from "../../../src/runner/loop/runner-loop.ts";

let skippedMs = 0;
let loop: RunnerLoop;
const ended: string[] = [];
const worker = "maker/0";

beforeEach(() => {
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout", "setInterval", "clearInterval", "performance"] });
  skippedMs = 0;
  ended.length = 0;
  const supervision = SupervisionConfig.parse({ heartbeatTimeoutMs: 3000 });
  loop = new RunnerLoop(
    { supervision, rejoinMs: 0, placeWaitMs: 0, maxStaleness: 0 },
    { now: () => performance.now() + skippedMs },
  );
  loop.on("end-process", (effect) => ended.push(effect.worker));
  loop.feed({ type: "add-component", component: "maker", restart: "rank", resizes: false, replays: [] });
  const place = { node: "a", devices: ["a/cpu:0"] };
  const places = [{ id: "a/cpu:0", index: 0, node: "a", kind: "cpu", memoryBytes: 1 }];
  loop.feed({ type: "nodes", present: ["a"], places });
  loop.start();
  loop.feed({ type: "lay-out", components: { maker: { ranks: [place] } } as never });
  loop.feed({ type: "launched", worker, incarnation: 0 });
  loop.feed({ type: "connected", worker, incarnation: 0 });
  loop.feed({ type: "ready", worker, incarnation: 0, memoryBytes: 0 });
});
afterEach(() => {
  loop.stop();
  vi.useRealTimers();
});

const beat = () => loop.feed({ type: "beat", worker, incarnation: 0, busyMs: 0 });

test("RL2: a runner that was suspended reads what has arrived before it takes a worker for silent", () => {
  vi.advanceTimersByTime(1000);
  beat();
  skippedMs += 13_000; // SIGSTOP; the worker's beats wait in a socket
  vi.advanceTimersByTime(600);
  expect(ended).toEqual([]);
  beat();
  vi.advanceTimersByTime(2500);
  expect(ended).toEqual([]);
});

test("RL2, S3: and one that stays silent then is ended", () => {
  vi.advanceTimersByTime(1000);
  beat();
  skippedMs += 13_000;
  vi.advanceTimersByTime(3000);
  expect(ended).toEqual([worker]);
});
