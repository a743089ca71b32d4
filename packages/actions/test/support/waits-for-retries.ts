/** Has nothing to do but to wait: a quota that refills, then two retries. */
import { TreadleError } from "@treadle/contracts";
import { ActionPool, QuotaManager } from "../../src/index.ts";

const search = new QuotaManager("search", { windows: [{ type: "bucket", limit: 1, burst: 1, periodMs: 150 }] });
const pool = new ActionPool({ managers: [search] });
const spec = { kind: "k", cost: { search: 1 }, retries: { limit: 2, backoffMs: 50 } };
pool.submit(spec, async () => 0);
const names = ["first", "second", "third"];
const { result } = pool.submit(spec, async ({ attempt }) => {
  if (attempt < 2) throw new TreadleError("sandbox.failed", "not yet");
  return `${names[attempt]} attempt, after a quota`;
});
void result.then((text) => process.stdout.write(`${text}\n`));
