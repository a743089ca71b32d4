/**
 * Inputs of `RunnerState` as they are written down, and read again. What items hold is left out: nothing is decided by
 * it. Keys and weights are kept, since batches depend on them.
 */
import {
  fromErrorRecord,
  RecordedError,
  RecordedItems,
  RecordedOutcome,
  type RecordedTurn,
  TreadleError,
  toErrorRecord,
} from "@treadle/contracts";
import type { ItemList, PutItem } from "../channel/channel-messages.ts";
import type { RunnerInput } from "../runner/runner-messages.ts";

export type RecordedInput = RecordedTurn[2];

export function recordInput(input: RunnerInput): RecordedInput {
  switch (input.type) {
    case "put":
      return { ...input, items: recordItems(input.items) };
    case "commit": {
      const { outputs } = input;
      return outputs ? { ...input, outputs: { ...outputs, items: recordItems(outputs.items) } } : input;
    }
    case "threw":
    case "swap-failed":
    case "fail":
    case "end":
      return { ...input, error: recordError(input.error) };
    case "close":
      return input.outcome.ok ? input : { ...input, outcome: { ok: false, error: recordError(input.outcome.error) } };
    default:
      return input;
  }
}

/** Throws what zod throws for what was not written by `recordInput`. */
export function readInput(recorded: RecordedInput): RunnerInput {
  switch (recorded.type) {
    case "put":
      return { ...recorded, items: readItems(RecordedItems.parse(recorded["items"])) } as unknown as RunnerInput;
    case "commit": {
      const outputs = recorded["outputs"] as { items: unknown } | undefined;
      const items = outputs && readItems(RecordedItems.parse(outputs.items));
      return (outputs ? { ...recorded, outputs: { ...outputs, items } } : recorded) as unknown as RunnerInput;
    }
    case "threw":
    case "swap-failed":
    case "fail":
    case "end":
      return { ...recorded, error: readError(RecordedError.parse(recorded["error"])) } as unknown as RunnerInput;
    case "close": {
      const outcome = RecordedOutcome.parse(recorded["outcome"]);
      return {
        ...recorded,
        outcome: outcome.ok ? outcome : { ok: false, error: readError(outcome.error) },
      } as unknown as RunnerInput;
    }
    default:
      return recorded as unknown as RunnerInput;
  }
}

function recordItems(items: ItemList): RecordedItems {
  const all = Array.from({ length: items.length }, (_, index) => items.at(index) as PutItem);
  const column = <Name extends "key" | "weight" | "priority" | "segment">(name: Name) =>
    all.some((item) => item[name] !== undefined) ? all.map((item) => item[name] ?? null) : undefined;
  return {
    sizes: all.map(({ sizeBytes }) => sizeBytes),
    keys: column("key") as (string | null)[] | undefined,
    weights: column("weight") as (number | null)[] | undefined,
    priorities: column("priority") as (number | null)[] | undefined,
    segments: column("segment") as (string | null)[] | undefined,
  };
}

function readItems({ sizes, keys, weights, priorities, segments }: RecordedItems): PutItem[] {
  return sizes.map((sizeBytes, index) => ({
    payload: undefined,
    sizeBytes,
    key: keys?.[index] ?? undefined,
    weight: weights?.[index] ?? undefined,
    priority: priorities?.[index] ?? undefined,
    segment: segments?.[index] ?? undefined,
  }));
}

function recordError(error: unknown): RecordedError {
  if (error instanceof TreadleError) return { ours: toErrorRecord(error) };
  const { name, message } = error instanceof Error ? error : new Error(String(error));
  return { name, message };
}

function readError(recorded: RecordedError): unknown {
  if ("ours" in recorded) return fromErrorRecord(recorded.ours);
  return Object.assign(new Error(recorded.message), { name: recorded.name });
}
