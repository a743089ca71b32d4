/** Pick policies of workflows: found again by their names, and ended when they take too long. */
import { createContext, Script } from "node:vm";
import { TreadleError } from "@treadle/contracts";
import { type PickFunction, pickFailure, type UserPolicy } from "@treadle/core";
import { locateExport } from "../../author/module-loader.ts";
import type { ClusterOptions } from "./cluster-options.ts";

/** Everybody waits while the home of a channel decides. */
const pickTimeoutMs = 1000;
/** Told once, when so much of the run has gone by in it. */
const slowMs = 10_000;

/**
 * Throws `workflow.invalid` for a function that nobody else could find: a replay of the run calls it again.
 *
 * `warn`: told once of a policy that answers in time each time, and whose calls still add up to what a run feels.
 */
export function userPolicy(
  channel: string,
  pick: PickFunction,
  workflowModule: ClusterOptions["workflowModule"],
  warn: (line: string) => void,
): UserPolicy {
  const located = workflowModule && locateExport(pick, [workflowModule]);
  if (located) {
    const onSlow = (numCalls: number) =>
      warn(
        `the pick policy '${located.exportName}' of channel '${channel}' has taken ${slowMs / 1000} s in ${numCalls} calls, during which nothing else of the run was decided; let it look at fewer items, or choose by weight or priority`,
      );
    return { ...located, pick: timed(bounded(pick), onSlow) };
  }
  throw new TreadleError(
    "workflow.invalid",
    `the pick policy '${pick.name || "a function"}' of channel '${channel}' is not exported by the workflow's module; export it there`,
  );
}

/** The same function, which throws when it has not answered in time, even from a loop without an end. */
export function bounded(pick: PickFunction): PickFunction {
  const context = createContext({ call: (): unknown => undefined }) as { call: () => unknown };
  const script = new Script("call()");
  return (items, take) => {
    let answered: { readonly indices: readonly number[] } | { readonly failure: Error } | undefined;
    // To read what it answers or throws is its code, too, so that happens within the time.
    context.call = () => {
      try {
        const answer = pick(items, take);
        answered = { indices: Array.isArray(answer) ? answer.slice(0, items.length + 1) : answer };
      } catch (thrown) {
        answered = { failure: pickFailure(thrown) };
      }
    };
    try {
      script.runInContext(context, { timeout: pickTimeoutMs });
    } catch {
      throw new Error(`it did not answer within ${pickTimeoutMs} ms`); // `call` throws nothing else
    } finally {
      context.call = () => undefined;
    }
    if (answered === undefined || "failure" in answered) throw answered?.failure;
    return answered.indices;
  };
}

/** The same function, whose time is added up. */
export function timed(
  pick: PickFunction,
  onSlow: (numCalls: number) => void,
  now: () => number = () => performance.now(),
): PickFunction {
  let totalMs = 0;
  let numCalls = 0;
  return (items, take) => {
    const beganMs = now();
    try {
      return pick(items, take);
    } finally {
      const before = totalMs;
      totalMs += now() - beganMs;
      numCalls++;
      if (before < slowMs && totalMs >= slowMs) onSlow(numCalls);
    }
  };
}
