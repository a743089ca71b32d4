/** What went into the state machines of runs that were struck by drawn faults, written down and read, leads to the same effects. */
import type { RecordedTurn, RecordingHeader } from "@treadle/contracts";
import { Replay } from "@treadle/core";
import { expect, test } from "vitest";
import { failureOf } from "./soak.ts";

const firstSeed = Number(process.env.TREADLE_SEED);
const numSeeds = 60;

function recordingsOf(seed: number): { header: RecordingHeader; lines: string[] }[] {
  const runs = new Map<RecordingHeader, string[]>();
  const failure = failureOf(seed, undefined, (header, turn) => {
    const lines = runs.get(header) ?? [];
    runs.set(header, lines);
    lines.push(JSON.stringify(turn));
  });
  expect(failure).toBeUndefined();
  return [...runs].map(([header, lines]) => ({ header: JSON.parse(JSON.stringify(header)) as RecordingHeader, lines }));
}

test(`RS7: every runner of seeds ${firstSeed} to ${firstSeed + numSeeds - 1} decides the same when it is replayed`, () => {
  let numInputs = 0;
  for (let seed = firstSeed; seed < firstSeed + numSeeds; seed++) {
    for (const { header, lines } of recordingsOf(seed)) {
      const replay = new Replay(header);
      for (const line of lines) {
        const turn = JSON.parse(line) as RecordedTurn;
        expect(replay.next(turn), `TREADLE_SEED=${seed}, input ${replay.numInputs}: ${line}`).toBe(true);
        numInputs++;
      }
    }
  }
  expect(numInputs).toBeGreaterThan(1000);
});

test("RS7: one input that is left out or altered is found out", () => {
  const [{ header, lines }] = recordingsOf(3) as [ReturnType<typeof recordingsOf>[number]];
  const isSame = (turns: readonly string[]) => {
    const replay = new Replay(header);
    return turns.every((line) => replay.next(JSON.parse(line) as RecordedTurn));
  };
  const at = lines.findIndex((line) => line.includes('"type":"ready"'));
  expect(isSame(lines)).toBe(true);
  expect(isSame(lines.toSpliced(at, 1))).toBe(false);
  const altered = (lines[at] as string).replace(/"worker":"\w+\/\d+"/, '"worker":"nobody/0"');
  expect(isSame(lines.with(at, altered))).toBe(false);
});
