import { openProtocol } from "../../src/testing/index.ts";

/** What the other process of a test may be asked. */
export const farWords = openProtocol([
  "echo",
  "sum",
  "sum and release",
  "keep",
  "sums of kept",
  "make",
  "hang",
  "die while sending",
]);
