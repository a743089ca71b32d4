/** Pick policies of workflows: found again by their names, and ended when they take too long. */
import { createContext, Script } from "node:vm";
import { TreadleError } from "@treadle/contracts";
import type { PickFunction, UserPolicy } from "@treadle/core";
import { locateExport } from "../../author/module-loader.ts";
import type { ClusterOptions } from "./cluster-options.ts";

/** Everybody waits while the home of a channel decides. */
const pickTimeoutMs = 1000;

/** Throws `workflow.invalid` for a function that nobody else could find: a replay of the run calls it again. */
export function userPolicy(
  channel: string,
  pick: PickFunction,
  workflowModule: ClusterOptions["workflowModule"],
): UserPolicy {
  const located = workflowModule && locateExport(pick, [workflowModule]);
  if (located) return { ...located, pick: bounded(pick) };
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
    context.call = () => pick(items, take);
    try {
      return script.runInContext(context, { timeout: pickTimeoutMs }) as readonly number[];
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== "ERR_SCRIPT_EXECUTION_TIMEOUT") throw error;
      throw new Error(`it did not answer within ${pickTimeoutMs} ms`);
    } finally {
      context.call = () => undefined;
    }
  };
}
