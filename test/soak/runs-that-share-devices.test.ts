import { expect, test } from "vitest";
import { sharedFailureOf } from "./shared-machine.ts";

const numSeeds = 300;

test(`PD2, PD9, PD10, LL1–LL4, L1, C1, J1: whatever fails, and whoever has the pool, ${numSeeds} machines finish all of their runs`, () => {
  const from = 1 + Number(process.env.TREADLE_SEED);
  for (let seed = from; seed < from + numSeeds; seed++) {
    const failure = sharedFailureOf(seed);
    expect(failure === undefined ? "" : `seed ${seed}: ${failure}`).toBe("");
  }
}, 360_000);
