/** A worker group: every public async method of the worker's class, called on all ranks or on some. */
import { type GroupRef, nearestOf, TreadleError } from "@treadle/contracts";
import type { Worker } from "../worker.ts";
import type { CallHandle } from "./handle.ts";

type MethodOf<W, K extends keyof W> = W[K] extends (...args: infer A) => Promise<infer R>
  ? (...args: A) => CallHandle<Awaited<R>>
  : never;

/** The methods that a class adds to `Worker`, each returning a handle at once. */
export type GroupMethods<W> = {
  readonly [K in Exclude<keyof W, keyof Worker> as W[K] extends (...args: never[]) => Promise<unknown>
    ? K
    : never]: MethodOf<W, K>;
};

export type WorkerGroup<W> = GroupMethods<W> & {
  readonly groupName: string;
  readonly size: number;
  /** The same group, restricted to some of its ranks. */
  onRanks(...ranks: readonly number[]): WorkerGroup<W>;
};

/** `ranks` is undefined for all of them. */
export type GroupCaller = (
  ranks: readonly number[] | undefined,
  method: string,
  args: readonly unknown[],
) => CallHandle<unknown>;

const groupDescription = Symbol("treadle.group");
export type GroupDescription = {
  readonly name: string;
  readonly size: number;
  readonly methods: readonly string[];
  /** present when the group is restricted to some of its ranks */
  readonly ranks?: readonly number[] | undefined;
};

/** Builds the group's object from the names of its methods. */
export function createGroup<W>(
  description: GroupDescription,
  call: GroupCaller,
  ranks?: readonly number[],
): WorkerGroup<W> {
  const group: Record<string | symbol, unknown> = {
    [groupDescription]: ranks ? { ...description, ranks } : description,
    groupName: description.name,
    get size() {
      return ranks?.length ?? description.size;
    },
    onRanks: (...selected: readonly number[]) => {
      for (const rank of selected) {
        if (!Number.isInteger(rank) || rank < 0 || rank >= description.size) {
          throw new TreadleError(
            "workflow.invalid",
            `group '${description.name}' has no rank '${rank}'; it has ranks 0 to ${description.size - 1}`,
          );
        }
      }
      if (selected.length === 0 || new Set(selected).size < selected.length) {
        throw new TreadleError(
          "workflow.invalid",
          `group '${description.name}' was restricted to ranks '${selected.join(", ")}'; name at least one, and each once`,
        );
      }
      return createGroup<W>(description, call, selected);
    },
  };
  for (const method of description.methods) {
    group[method] = (...args: readonly unknown[]) => call(ranks, method, args);
  }
  return new Proxy(group, { get: (target, name) => memberOf(target, name, description) }) as WorkerGroup<W>;
}

/** What promises, printers and serialisers look for in any object, and what is no misspelt method. */
const asked = new Set(["then", "toJSON", "constructor", "asymmetricMatch", "nodeType", "tagName", "$$typeof"]);

function memberOf(
  group: Record<string | symbol, unknown>,
  name: string | symbol,
  { name: component, methods }: GroupDescription,
): unknown {
  if (name in group || typeof name === "symbol" || asked.has(name) || name.startsWith("@@")) return group[name];
  return () => {
    const nearest = nearestOf(name, methods);
    const remedy = nearest === undefined ? `it has ${methods.join(", ") || "none"}` : `did you mean '${nearest}'?`;
    throw new TreadleError("call.unknown-method", `group '${component}' has no method '${name}'; ${remedy}`);
  };
}

/** The description of a group, or undefined when the value is none. */
export function describeGroup(value: unknown): GroupDescription | undefined {
  return typeof value === "object" && value !== null && groupDescription in value
    ? (value as { [groupDescription]: GroupDescription })[groupDescription]
    : undefined;
}

/** A group as it travels in the arguments of a call. */
export function groupRef({ name, size, methods, ranks }: GroupDescription): GroupRef {
  return { $group: name, size, methods: [...methods], ...(ranks ? { ranks: [...ranks] } : {}) };
}
