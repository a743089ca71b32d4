import { expect, test } from "vitest";
import { simulateRolloutCommand } from "../src/commands/simulate-rollout.ts";

test.each(["0", "-1", "two"])("parts over '%s' seeds are refused, as there would be no figure", async (seeds) => {
  const parsed = simulateRolloutCommand().parseAsync([`--parts=${seeds}`], { from: "user" });
  await expect(parsed).rejects.toThrow(`--parts '${seeds}' is not allowed: an integer of at least 1 is`);
});
