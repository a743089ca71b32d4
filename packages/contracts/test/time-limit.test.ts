import { EventEmitter, once } from "node:events";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { expect, test } from "vitest";
import { timeLimit } from "../src/time-limit.ts";

setFlagsFromString("--expose-gc");
const collectGarbage = runInNewContext("gc") as () => void;

test("a time limit ends what waits, though garbage is collected meanwhile, and says that it was the time", async () => {
  const other = new AbortController();
  const waiting = once(new EventEmitter(), "never", { signal: timeLimit(100, other.signal, undefined) });
  const collecting = setInterval(collectGarbage, 10);
  try {
    await expect(waiting).rejects.toMatchObject({ name: "AbortError", cause: { name: "TimeoutError" } });
  } finally {
    clearInterval(collecting);
  }
});

test("it ends with a signal that was given, also one that is over already", async () => {
  const other = new AbortController();
  const limit = timeLimit(60_000, other.signal);
  expect(limit.aborted).toBe(false);
  other.abort("enough");
  expect([limit.aborted, limit.reason]).toEqual([true, "enough"]);
  expect(timeLimit(60_000, other.signal).aborted).toBe(true);
});
