/** What workers, servers and other machines have named or said, on a terminal. */
import type { RunEvent } from "@treadle/contracts";
import { fold, initialState } from "@treadle/dashboard/view";
import { describe, expect, it } from "vitest";
import { personLine } from "../src/commands/logs.ts";
import { renderRun } from "../src/commands/runs.ts";
import { renderDoctor } from "../src/doctor.ts";
import { renderFrame } from "../src/view/live-frame.ts";
import { PlainLines } from "../src/view/plain.ts";
import { poolTable } from "../src/view/pool-table.ts";
import { printableEvent } from "../src/view/printable-event.ts";
import { RunLines } from "../src/view/run-lines.ts";

/** Clears the screen, writes into the clipboard, and, on terminals that know C1, goes on without an escape. */
const evil = "a\u001b[2J\u001b]52;c;ZXZpbA==\u0007\u009b2J\u202eb";
// biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
const moves = /[\u0000-\u0009\u000b-\u001f\u007f-\u009f\u202e]/;

const events: RunEvent[] = [
  { type: "run-started", atMs: 1, runId: evil, workflow: evil, mode: evil, steps: 3, folder: evil },
  { type: "phase", atMs: 2, name: evil },
  { type: "step-started", atMs: 3, step: 1 },
  {
    type: "step-finished",
    atMs: 4,
    step: 1,
    seconds: 1,
    tokens: 1,
    policyVersion: 1,
    metrics: { [evil]: Number.NaN, reward: 1 },
  },
  { type: "waiting", atMs: 5, who: evil, on: evil, seconds: 11 },
  { type: "checkpoint", atMs: 6, step: 1, path: evil },
  { type: "log", atMs: 7, worker: evil, level: "warn", line: evil },
] as unknown as RunEvent[];

describe("what others have said moves no cursor", () => {
  it("in the lines of a run", () => {
    const lines: string[] = [];
    const run = new RunLines(["run"], (line) => lines.push(line));
    for (const event of events) run.event("run", event);
    run.notice("run", evil);
    expect(lines.length).toBeGreaterThan(4);
    expect(lines.join("\n")).toContain("ab");
    expect(lines.join("\n")).not.toMatch(moves);
  });

  it("in the frames of a run, names of metrics too", () => {
    const plain = new PlainLines();
    let state = initialState;
    for (const event of events.map(printableEvent)) {
      state = fold(state, event);
      expect(plain.lines(event, state).join("\n")).not.toMatch(moves);
      const frame = renderFrame(state, { columns: 100, rows: 40, nowMs: 10, colour: false });
      expect(frame.join("\n")).not.toMatch(moves);
    }
    expect(renderFrame(state, { columns: 100, rows: 40, nowMs: 10, colour: false }).join("\n")).toContain("ab is NaN");
  });

  it("in what 'doctor' has found", () => {
    const finding = {
      name: evil,
      status: "limited",
      need: "required",
      found: evil,
      purpose: "p",
      remedy: evil,
    } as const;
    expect(renderDoctor([finding], { colour: false })).not.toMatch(moves);
  });

  it("in the tables of pools, lists of runs and logs", () => {
    const pool = { name: evil, host: evil, pid: 1, startedAt: evil, runs: [] };
    expect(poolTable(pool as unknown as Parameters<typeof poolTable>[0])).not.toMatch(moves);
    expect(renderRun({ runId: evil })).not.toMatch(moves);
    expect(personLine(evil, evil)).not.toMatch(moves);
  });
});
