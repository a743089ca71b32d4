/** Pick policies of workflows: found again by their names, and ended when they take too long. */
import { types } from "node:util";
import { createContext, Script } from "node:vm";
import { TreadleError } from "@treadle/contracts";
import { type PickFunction, pickFailure, type UserPolicy } from "@treadle/core";
import { locateExport } from "../../author/module-loader.ts";
import type { ClusterOptions } from "./cluster-options.ts";

const { isPromise } = types;

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
    let answered: { readonly indices: unknown } | { readonly failure: Error } | undefined;
    // To read what it answers or throws is its code, too, so that happens within the time.
    context.call = () => {
      try {
        answered = { indices: plainOf(pick(items, take), items.length) };
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
    return answered.indices as readonly number[]; // which its caller checks
  };
}

/**
 * Numbers and texts of our own, whatever was answered: nothing of it is looked at again. Texts are what is wrong with it. Throws for an async
 * policy.
 */
function plainOf(answer: unknown, numItems: number): string | (number | string)[] {
  if (isPromise(answer)) {
    Promise.prototype.then.call(answer, undefined, () => {}); // what it rejects with is nobody's
    throw new Error("it is async, and has to answer at once");
  }
  if (!Array.isArray(answer)) return shortText(answer);
  const { length } = answer;
  if (!Number.isInteger(length)) return "an array without a length";
  const plain: (number | string)[] = [];
  for (let at = 0; at < length && at <= numItems; at++) {
    const index: unknown = answer[at];
    plain.push(typeof index === "number" ? index : shortText(index));
  }
  return plain;
}

const shortText = (value: unknown): string => String(value).slice(0, 100);

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
