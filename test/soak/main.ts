/**
 * `npm run soak -- --seeds 100000 [--from 1] [--seed N]`: a run over several nodes in virtual time, with faults drawn
 * from each seed. Ends with 1 when an invariant broke, after printing the seed and the fewest faults under which it does.
 */
import { type ChildProcess, fork } from "node:child_process";
import { availableParallelism } from "node:os";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { describeFailure, explain, type Failure } from "./soak.ts";

type Told = { readonly done: number; readonly failures: readonly Failure[] };

const { values } = parseArgs({
  options: {
    seeds: { type: "string", default: "100000" },
    from: { type: "string", default: "1" },
    seed: { type: "string" },
    share: { type: "string" },
  },
});
const chunk = 100;
const maxFailures = 10;

if (values.seed !== undefined) {
  const failure = explain(Number(values.seed));
  console.log(failure ? describeFailure(failure) : `seed ${values.seed}: no invariant is broken`);
  process.exitCode = failure ? 1 : 0;
} else if (values.share !== undefined) {
  const [from, to, stride] = values.share.split(",").map(Number) as [number, number, number];
  for (let seed = from; seed < to; ) {
    const failures: Failure[] = [];
    let done = 0;
    for (; done < chunk && seed < to; done++, seed += stride) {
      const failure = explain(seed);
      if (failure) failures.push(failure);
    }
    process.send?.({ done, failures } satisfies Told);
  }
  process.disconnect?.();
} else {
  process.exitCode = await soak(Number(values.from), Number(values.seeds));
}

async function soak(from: number, numSeeds: number): Promise<number> {
  const beganMs = performance.now();
  const stride = Math.max(1, Math.min(availableParallelism(), numSeeds));
  const failures: Failure[] = [];
  let done = 0;
  let shownMs = 0;
  const show = (isLast = false) => {
    const nowMs = performance.now();
    const every = process.stderr.isTTY ? 200 : 10_000;
    if (!isLast && nowMs - shownMs < every) return;
    shownMs = nowMs;
    const share = done / numSeeds;
    const bar = "█".repeat(Math.round(share * 30)).padEnd(30, "░");
    const leftSeconds = done === 0 ? "?" : Math.round(((nowMs - beganMs) / 1000 / share) * (1 - share));
    const text = `${bar} ${done} of ${numSeeds} seeds, ${failures.length} broken, ${leftSeconds} s left`;
    process.stderr.write(process.stderr.isTTY ? `\r${text} ` : `${text}\n`);
  };
  const children: ChildProcess[] = [];
  const ends = Array.from({ length: stride }, (_, i) => {
    const share = `${from + i},${from + numSeeds},${stride}`;
    const child = fork(fileURLToPath(import.meta.url), ["--share", share]);
    children.push(child);
    child.on("message", (told: Told) => {
      done += told.done;
      failures.push(...told.failures);
      show();
      if (failures.length >= maxFailures) for (const each of children) each.kill();
    });
    return new Promise<boolean>((resolve) => child.once("exit", (code) => resolve(code === 0)));
  });
  const isWhole = (await Promise.all(ends)).every(Boolean);
  show(true);
  process.stderr.write("\n");
  for (const failure of failures.slice(0, maxFailures)) console.log(describeFailure(failure));
  const seconds = ((performance.now() - beganMs) / 1000).toFixed(1);
  console.log(`${done} seeds from ${from} in ${seconds} s: ${failures.length} broke an invariant`);
  return isWhole && failures.length === 0 ? 0 : 1;
}
