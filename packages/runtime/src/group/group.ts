/** A worker group: every public async method of the worker's class, called on all ranks or on some. */
import { TreadleError } from "@treadle/contracts";
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
export type GroupDescription = { readonly name: string; readonly size: number; readonly methods: readonly string[] };

/** Builds the group's object from the names of its methods. */
export function createGroup<W>(
  description: GroupDescription,
  call: GroupCaller,
  ranks?: readonly number[],
): WorkerGroup<W> {
  const group: Record<string | symbol, unknown> = {
    [groupDescription]: description,
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
      return createGroup<W>(description, call, selected);
    },
  };
  for (const method of description.methods) {
    group[method] = (...args: readonly unknown[]) => call(ranks, method, args);
  }
  return group as WorkerGroup<W>;
}

/** The description of a group, or undefined when the value is none. */
export function describeGroup(value: unknown): GroupDescription | undefined {
  return typeof value === "object" && value !== null && groupDescription in value
    ? (value as { [groupDescription]: GroupDescription })[groupDescription]
    : undefined;
}
