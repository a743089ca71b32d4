/** What the device lock says of itself: who holds what, who waits for whom, and the errors. */
import { TreadleError } from "@treadle/contracts";
import type { CallOrder } from "./call-order.ts";
import type { LockSnapshot } from "./lock-messages.ts";
import type { Member, Party } from "./lock-party.ts";
import {
  type Excess,
  neededBytes,
  type ResidencyTable,
  residencyOf,
  type Want,
  type WorkerState,
} from "./residency.ts";
import { describeChain, type WaitEdge, waitChain } from "./wait-for.ts";

/** The edges of everybody who has asked and has no grant yet; holders of the devices come first. */
export function lockEdges(
  members: Iterable<Member>,
  holders: ReadonlyMap<string, Party>,
  order: CallOrder,
  residency: ResidencyTable,
): WaitEdge[] {
  const edges: WaitEdge[] = [];
  for (const { party, worker, state, call } of members) {
    if (state !== "asking") continue;
    const { devices } = party;
    const add = (other: string, on: string, kind: WaitEdge["kind"]): void => {
      if (other !== worker.worker) edges.push({ waiter: worker.worker, waitsFor: other, on, kind });
    };
    for (const device of devices) {
      const holder = holders.get(device);
      if (holder === undefined || holder === party) continue;
      for (const other of holder.members.values()) {
        if (other.worker.devices.includes(device)) add(other.worker.worker, device, "device");
      }
    }
    if (party.state === "preparing") {
      for (const other of residency.workers) {
        const shared = other.devices.find((device) => devices.includes(device));
        if (shared !== undefined && other.swap?.type === "offload") add(other.worker, shared, "swap");
      }
    } else if (party.state === "gathering") {
      for (const other of order.gangOf(call)) if (!party.members.has(other.call)) add(other.worker, "lock", "call");
    } else {
      for (const { call: first, device } of order.predecessors(call, devices)) add(first.worker, device, "order");
    }
  }
  return edges;
}

/** While other runs have the devices. */
export function leaseEdges(members: Iterable<Member>): WaitEdge[] {
  return [...members].flatMap(({ state, worker }) => {
    const on = worker.devices[0];
    if (state !== "asking" || on === undefined) return [];
    return [{ waiter: worker.worker, waitsFor: "another run", on, kind: "device" as const }];
  });
}

/** L5: the whole chain by worker name, and the remedy. `kept`: for whom one of its devices is, and which. */
export function lockTimeout(
  member: Member,
  edges: readonly WaitEdge[],
  kept: { readonly keeper: Party; readonly device: string } | undefined,
): TreadleError {
  const { worker, timeoutMs, party, call } = member;
  const chain = waitChain(worker.worker, edges);
  const [first, ...rest] = chain.path;
  const device = first?.kind === "device" || first?.kind === "swap" ? first.on : (party.devices[0] ?? "none");
  let why = `'${worker.worker}' waits for ${describeChain(chain)}`;
  if (first === undefined) {
    const isLoading = party.state === "preparing" && worker.swap?.type === "onload";
    if (isLoading) why = `'${worker.worker}' has not finished its onload`;
    else if (kept === undefined) why = `others are before '${worker.worker}' in line`;
    else why = keptFor(kept, edges);
  } else if (first.kind === "device") {
    const after = describeChain({ path: rest, cycle: chain.cycle });
    why = `held by '${first.waitsFor}'${rest.length > 0 ? ", which waits for " : ""}${after}`;
  }
  return new TreadleError(
    "lock.timeout",
    `device lock on '${device}' not granted within ${timeoutMs} ms: ${why}; raise supervision.lockTimeoutMs or check that worker`,
    {
      details: { call: call.call, devices: party.devices, chain: chain.path, cycle: chain.cycle },
      origin: { worker: worker.worker },
    },
  );
}

/** L2. */
function keptFor({ keeper, device }: { keeper: Party; device: string }, edges: readonly WaitEdge[]): string {
  const [{ worker }] = keeper.workers as readonly [WorkerState, ...WorkerState[]];
  const chain = waitChain(worker, edges);
  const after = chain.path.length > 0 ? ` and which waits for ${describeChain(chain)}` : "";
  return `device '${device}' is kept for '${worker}', which others have passed${after}`;
}

export function staleToken(token: number): TreadleError {
  return new TreadleError(
    "lock.stale-token",
    `device lock token '${token}' is not valid any more: it was released or lent, or its worker was taken for dead; acquire again`,
    { details: { token } },
  );
}

export function outOfMemory(
  wants: readonly Want[],
  { device, needsBytes, capacityBytes, left, leftBytes }: Excess,
): TreadleError {
  const here = wants.filter(({ worker }) => worker.devices.includes(device));
  const names = here.map((want) => `'${want.worker.worker}'${byTag(want)}`).join(" and ");
  const excessBytes = needsBytes + leftBytes - capacityBytes;
  const without = firstWithout(here, capacityBytes - leftBytes);
  const keepers = left.map(({ worker, residualBytes }) => `'${worker}' keeps ${residualBytes} while it is offloaded`);
  const beside = keepers.length > 0 ? ` and where ${keepers.join(" and ")}` : "";
  return new TreadleError(
    "device.out-of-memory",
    `${names} need ${needsBytes} bytes on device '${device}', which has ${capacityBytes}${beside}: ${excessBytes} too many${without ? `, and no room for ${without.tag} of '${without.component}'` : ""}; use a larger device, more of them, or a smaller model`,
    { details: { device, needsBytes, leftBytes, capacityBytes, excessBytes, ...without } },
  );
}

function byTag({ worker, parts }: Want): string {
  if (worker.parts[0]?.tag === undefined) return "";
  const residualBytes = neededBytes({ worker, parts }) - parts.reduce((sum, { bytes }) => sum + bytes, 0);
  const all = [...parts.map(({ tag, bytes }) => ({ tag, bytes })), { tag: "residual", bytes: residualBytes }];
  return ` (${all.flatMap(({ tag, bytes }) => (bytes > 0 ? [`${tag} ${bytes}`] : [])).join(", ")})`;
}

/** Of those that tell their tags, what is the first to find no room, with what is missing for it. */
function firstWithout(wants: readonly Want[], roomBytes: number) {
  let missingBytes = -roomBytes;
  for (const { worker, parts } of wants) {
    missingBytes += neededBytes({ worker, parts: [] });
    for (const { tag, bytes } of parts) {
      if (tag === undefined) continue;
      missingBytes += bytes;
      if (missingBytes > 0) return { component: worker.worker, tag, missingBytes };
    }
  }
  return undefined;
}

export function lockSnapshot(
  all: Iterable<Member>,
  holders: ReadonlyMap<string, Party>,
  residency: ResidencyTable,
  leases: LockSnapshot["leases"],
): LockSnapshot {
  const members = [...all];
  return {
    devices: residency.devices.map((device) => {
      const holding = [...(holders.get(device.device)?.members.values() ?? [])].map(({ worker }) => worker);
      return {
        ...device,
        holders: holding.filter(({ devices }) => devices.includes(device.device)).map(({ worker }) => worker),
      };
    }),
    workers: [...residency.workers].map((each) => ({
      worker: each.worker,
      residency: residencyOf(each),
      residentBytes: each.residentBytes ?? 0,
    })),
    leases,
    holds: members
      .filter((member) => member.state !== "asking")
      .map(({ call, worker, token, count, state }) => ({
        call: call.call,
        worker: worker.worker,
        token,
        count,
        lent: state === "lent",
      })),
    waiting: members
      .filter((member) => member.state === "asking")
      .map(({ call, worker, sinceMs, party }) => ({
        call: call.call,
        worker: worker.worker,
        sinceMs,
        state: party.state,
      })),
  };
}
