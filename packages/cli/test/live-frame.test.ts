import { stripVTControlCharacters } from "node:util";
import { syntheticRun } from "@treadle/dashboard/testing";
import { deviceRange, emptyCurve, extendCurve, fold, initialState } from "@treadle/dashboard/view";
import stringWidth from "string-width";
import { describe, expect, it } from "vitest";
import { renderFrame } from "../src/view/live-frame.ts";

const events = syntheticRun({ steps: 40, killedInStep: 12 });
const states = [initialState];
for (const event of events) states.push(fold(states.at(-1)!, event));
const died = states[events.findIndex(({ type }) => type === "waiting") + 1]!;
const size = { columns: 80, rows: 30, nowMs: died.lastEventAtMs! + 3000, colour: false };

describe("a live frame", () => {
  it("fits every terminal at every moment of a run", () => {
    for (const columns of [20, 40, 79, 200]) {
      for (const rows of [1, 3, 8, 15, 24, 60]) {
        for (const state of states.filter((_, i) => i % 23 === 0)) {
          const lines = renderFrame(state, { columns, rows, nowMs: (state.lastEventAtMs ?? 0) + 10, colour: true });
          expect(lines.length).toBeLessThanOrEqual(rows);
          for (const line of lines) expect(stringWidth(line)).toBeLessThanOrEqual(columns);
        }
      }
    }
  });

  it("says where the run is, what died and what waits", () => {
    const text = renderFrame(died, size).join("\n");
    expect(text).toContain("reasoning-grpo  hybrid");
    expect(text).toContain("rollout cpu:0-2 ×16");
    expect(text).toMatch(/step 11\/40/);
    expect(text).toContain("rollout/1 died: killed by SIGKILL, out of memory");
    expect(text).toContain("waiting actor/0 on 'episodes' from 'rollout/1' for 5s");
    expect(text).toContain("1 down");
  });

  it("writes different texts at both ends of an axis, however close they are, and cuts no curve for them", () => {
    const ended = states.at(-1)!;
    for (const [low, high] of [
      [0.2204, 0.2209],
      [0.5, 0.500_001],
      [1_234_567, 1_234_568],
      [-3e-9, 2e-9],
      [0.31, 0.87],
    ] as const) {
      const curve = [low, high, low, high].reduce((grown, value, i) => extendCurve(grown, i + 1, value), emptyCurve);
      for (const part of [
        { reward: curve, accuracy: emptyCurve },
        { reward: emptyCurve, accuracy: curve },
      ]) {
        const lines = renderFrame({ ...ended, ...part }, { ...size, columns: 100, rows: 30 });
        const ends = lines.flatMap((line) => /^ *(\S.*)┤/.exec(line)?.[1] ?? []);
        expect(ends).toHaveLength(2);
        expect(new Set(ends).size).toBe(2);
      }
    }
  });

  it("shows what the policy writes now", () => {
    const ended = states.at(-1)!;
    const text = renderFrame(ended, { ...size, rows: 40 }).join("\n");
    expect(text).toMatch(/^sample {2}12\+34= → 46 +reward 1\.00, step 40$/m);
  });

  it("keeps progress and trouble when rows run short, and lets plans and old notices go", () => {
    const text = renderFrame(died, { ...size, rows: 7 }).join("\n");
    expect(text).toContain("step 11/40");
    expect(text).toContain("died");
    expect(text).not.toContain("cpu:0-2");
  });

  it("draws components' shares at full width", () => {
    const bars = renderFrame(died, size).filter((line) => /^(rollout|actor|inference) +█/.test(line));
    expect(bars).toHaveLength(3);
    for (const line of bars) expect(/[█▓▒░·]+/.exec(line)![0]).toHaveLength(bars[0]!.match(/[█▓▒░·]+/)![0].length);
  });

  it("holds no escape sequence without colour, and none of a worker's", () => {
    const state = fold(died, {
      type: "log",
      atMs: 0,
      worker: "a/0",
      level: "error",
      line: "\u001b[2J\u001b[31mred\r\nalert",
    });
    const text = renderFrame(state, size).join("\n");
    expect(stripVTControlCharacters(text)).toBe(text);
    expect(text).toContain("a/0: red alert");
  });

  it("ends with the result", () => {
    expect(renderFrame(states.at(-1)!, size).join("\n")).toContain("finished");
    const failed = fold(died, { type: "run-failed", atMs: 0, error: { code: "worker.died", message: "x" } });
    expect(renderFrame(failed, size).join("\n")).toContain("failed");
  });
});

it("joins neighbouring devices", () => {
  expect(deviceRange(["cpu:0", "cpu:1", "cpu:2", "gpu:0", "gpu:2", "arm"])).toBe("cpu:0-2 gpu:0 gpu:2 arm");
});
