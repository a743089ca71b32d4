/** Channels and groups in the arguments of a call: references on the wire, live objects in the worker. */
import { ChannelRef, GroupRef, readMessage, TreadleError } from "@treadle/contracts";
import type { z } from "zod";
import { requireCall } from "../call/call-context.ts";
import type { ChannelWait } from "../call/call-meter.ts";
import { type HomePort, SinkClient, SourceClient } from "../channel/channel-client.ts";
import { loadSchema } from "../module-loader.ts";
import { createGroup, describeGroup, type GroupCaller, groupRef } from "./group.ts";
import { CallHandle, type RankReply } from "./handle.ts";

const maxDepth = 4;

/** Replaces whatever `replace` answers something for, in plain objects and arrays down to four levels. */
export function mapArguments(value: unknown, replace: (value: object) => unknown, depth = 0): unknown {
  if (typeof value !== "object" || value === null) return value;
  const replaced = replace(value);
  if (replaced !== undefined) return replaced;
  if (depth >= maxDepth) return value;
  if (Array.isArray(value)) return value.map((item) => mapArguments(item, replace, depth + 1));
  if (Object.getPrototypeOf(value) !== Object.prototype) return value;
  const copy: Record<string, unknown> = { ...value };
  for (const key in copy) {
    const item = copy[key];
    if (typeof item === "object") copy[key] = mapArguments(item, replace, depth + 1);
  }
  return copy;
}

/** True when `decodeArguments` has something to replace. */
export function holdReferences(args: readonly unknown[]): boolean {
  return args.some((arg) => holdsReference(arg, 0));
}

function holdsReference(value: unknown, depth: number): boolean {
  if (typeof value !== "object" || value === null) return false;
  if ("$channel" in value || "$group" in value) return true;
  if (depth >= maxDepth || ArrayBuffer.isView(value)) return false;
  if (Array.isArray(value)) return value.some((item) => holdsReference(item, depth + 1));
  if (Object.getPrototypeOf(value) !== Object.prototype) return false;
  for (const key in value) if (holdsReference((value as Record<string, unknown>)[key], depth + 1)) return true;
  return false;
}

/** True when a channel is among them, wherever it would be found. */
export function passChannels(args: readonly unknown[]): boolean {
  let found = false;
  const look = (value: object): undefined => {
    found ||= "$channel" in value;
  };
  for (const arg of args) mapArguments(arg, look);
  return found;
}

export type ArgumentPorts = {
  /** where a module of the runner's machine is on this one */
  readonly moduleHere: (module: string) => Promise<string>;
  readonly home: HomePort;
  readonly waiting: (channel: string, role: "source" | "sink", inFlight?: number) => ChannelWait;
  readonly callWorker: (worker: string, method: string, args: readonly unknown[]) => Promise<unknown>;
};

/** Rejects with `link.protocol`, and with `worker.load-failed` where a channel's schema is none here. */
export async function decodeArguments(args: readonly unknown[], ports: ArgumentPorts): Promise<unknown[]> {
  const schemas = new Map<string, z.ZodType>();
  const sinks: ChannelRef[] = [];
  const collect = (value: object) => {
    const ref = ChannelRef.safeParse(value);
    if (ref.success && ref.data.role === "sink") sinks.push(ref.data);
    return undefined;
  };
  for (const arg of args) mapArguments(arg, collect);
  for (const { $channel, schema } of sinks) {
    schemas.set($channel, await loadSchema(await ports.moduleHere(schema.module), schema.exportName));
  }
  const replace = (value: object): unknown => {
    if ("$channel" in value) {
      const ref = readMessage(ChannelRef, value);
      const call = () => requireCall(`channel '${ref.$channel}' was used`).call;
      return ref.role === "source"
        ? new SourceClient(ref, ports.home, call, (inFlight) => ports.waiting(ref.$channel, "source", inFlight))
        : new SinkClient(ref, schemas.get(ref.$channel) as z.ZodType, ports.home, call, () =>
            ports.waiting(ref.$channel, "sink"),
          );
    }
    if ("$group" in value) return remoteGroup(readMessage(GroupRef, value), ports);
    return undefined;
  };
  return args.map((arg) => mapArguments(arg, replace));
}

/** A group as another worker sees it: calls go directly from worker to worker. */
function remoteGroup(ref: GroupRef, ports: ArgumentPorts): unknown {
  const description = { name: ref.$group, size: ref.size, methods: ref.methods };
  const all = Array.from({ length: ref.size }, (_, rank) => rank);
  const call: GroupCaller = (ranks = all, method, args) => {
    const encoded = args.map((arg) => mapArguments(arg, refuseChannel));
    const replies = ranks.map(
      (rank) => ports.callWorker(`${ref.$group}/${rank}`, method, encoded) as Promise<RankReply<unknown>>,
    );
    return new CallHandle(`${ref.$group}.${method}`, ranks, replies, () => {});
  };
  return createGroup(description, call, ref.ranks);
}

function refuseChannel(value: object): unknown {
  if (value instanceof SourceClient || value instanceof SinkClient) {
    throw new TreadleError(
      "workflow.invalid",
      `channel '${value.name}' was passed from one worker to another; only the workflow passes channels, so that their ends are known`,
    );
  }
  const group = describeGroup(value);
  return group && groupRef(group);
}
