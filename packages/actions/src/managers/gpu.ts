import { z } from "zod";
import { type Chunk, carveChunk, chunkSizeFor, chunkSizes, joinChunk } from "../arrange/buddy.ts";
import type { Grant, ResourceManager, ResourceRequest, ServiceInstance } from "./manager.ts";

/** One service at one degree of parallelism; different degrees are different services (§5.3). */
const Variant = z.strictObject({
  dop: z.int().positive().max(8),
  /** on every device */
  memoryBytes: z.number().nonnegative(),
  restoreSeconds: z.number().nonnegative(),
});

export const GpuCluster = z.strictObject({
  nodes: z.int().positive(),
  devicesPerNode: z.union(chunkSizes.map((s) => z.literal(s))).default(8),
  memoryBytesPerDevice: z.number().positive(),
  services: z.record(z.string().min(1), z.array(Variant).min(1)),
});
export type GpuCluster = z.input<typeof GpuCluster>;

type Resident = ServiceInstance & { readonly memoryBytes: number; usedAt: number };
type Held = {
  readonly chunk: Chunk;
  readonly evicting: readonly Resident[];
  readonly instance: Resident | undefined;
  verified: boolean;
};

/**
 * The GPU manager, evict-on-execution (§5.3). An action gets an aligned interval of devices to itself; services stay in
 * device memory after their action until another one needs the room.
 *
 * GP1 a device runs one action at a time.
 * GP2 what is resident on a device never exceeds its memory.
 * GP3 an action starts only after `verifyFreed` has seen the memory it needs: a process that was told to go may keep
 *    its memory, so counting it as freed is not enough.
 * GP4 least recently used goes first, and only from the devices of the new action.
 */
export class GpuManager implements ResourceManager {
  readonly resource: string;
  readonly capacity: number;
  readonly grantsWholeUnits = true;
  readonly #memoryBytes: number;
  readonly #largest: number;
  readonly #services: ReadonlyMap<string, readonly z.infer<typeof Variant>[]>;
  #free: Chunk[];
  #residents: Resident[] = [];
  #uses = 0;
  readonly #held = new Map<string, Held>();

  constructor(cluster: GpuCluster, resource = "gpu") {
    const { nodes, devicesPerNode, memoryBytesPerDevice, services } = GpuCluster.parse(cluster);
    this.resource = resource;
    this.capacity = devicesPerNode;
    this.#largest = devicesPerNode;
    this.#memoryBytes = memoryBytesPerDevice;
    this.#services = new Map(Object.entries(services));
    this.#free = Array.from({ length: nodes }, (_, node) => ({ node, start: 0, size: devicesPerNode }));
  }

  bind(): string {
    return this.resource;
  }

  home(): undefined {
    return undefined;
  }

  pools(): ReadonlyMap<string, { free: number; chunks: readonly Chunk[] }> {
    const free = this.#free.reduce((sum, c) => sum + c.size, 0);
    return new Map([[this.resource, { free, chunks: this.#free }]]);
  }

  preparationSeconds({ service }: ResourceRequest, units: number): number {
    return service === undefined ? 0 : this.restoreSeconds(service, units);
  }

  whyNever({ service, minimum }: ResourceRequest): string | undefined {
    if (service === undefined || this.#variant(service, minimum) !== undefined) return undefined;
    const variants = this.#services.get(service)?.map(({ dop }) => dop);
    const known = [...this.#services.keys()].map((name) => `'${name}'`).join(", ") || "none";
    return variants === undefined
      ? `service '${service}' is not known to '${this.resource}', which has ${known}`
      : `service '${service}' does not run on ${minimum} devices of '${this.resource}', but on ${variants.join(", ")}; ask for one of these`;
  }

  /** Seconds to add to an action's duration at this degree: zero where a free interval holds the service already. */
  restoreSeconds(service: string, dop: number): number {
    const variant = this.#variant(service, dop);
    if (variant === undefined) return 0;
    const warm = this.#residents.some((r) => r.service === service && r.dop === dop && this.#freeChunkAround(r.chunk));
    return warm ? 0 : variant.restoreSeconds;
  }

  residents(): readonly ServiceInstance[] {
    return this.#residents.map(({ service, dop, chunk }) => ({ service, dop, chunk }));
  }

  acquire(pool: string, { actionId, service }: ResourceRequest, units: number): Grant | undefined {
    const size = chunkSizeFor(units);
    if (size === undefined) return undefined;
    const variant = service === undefined ? undefined : this.#variant(service, units);
    if (service !== undefined && variant === undefined) return undefined;
    const place = this.#choose(size, service, units, variant?.memoryBytes ?? 0);
    if (place === undefined) return undefined;
    const { from, chunk, instance, evicting } = place;
    this.#free = this.#free.filter((c) => c !== from).concat(carveChunk(from, chunk.start, size));
    const usedAt = ++this.#uses;
    let resident = instance;
    if (resident !== undefined) resident.usedAt = usedAt;
    else if (service !== undefined)
      resident = { service, dop: units, chunk, memoryBytes: variant!.memoryBytes, usedAt };
    const restore = instance === undefined && service !== undefined;
    // With nothing to restore nothing has to be freed.
    this.#held.set(actionId, { chunk, evicting, instance: resident, verified: !restore });
    const neededBytes = restore ? variant!.memoryBytes : 0;
    const evict = evicting.map(({ service, dop, chunk }) => ({ service, dop, chunk }));
    return { resource: this.resource, pool, units, devices: { chunk, evict, restore, neededBytes } };
  }

  /**
   * Whether the action may start: `freeBytes` is what every device of its interval was measured to have free after the
   * evictions, in device order. Until it returns true the service does not count as resident.
   */
  verifyFreed(actionId: string, freeBytes: readonly number[]): boolean {
    const held = this.#held.get(actionId);
    if (held === undefined) return false;
    if (held.verified) return true;
    this.#residents = this.#residents.filter((r) => !held.evicting.includes(r));
    const needed = held.instance?.memoryBytes ?? 0;
    if (freeBytes.length !== held.chunk.size || freeBytes.some((bytes) => bytes < needed)) return false;
    if (held.instance !== undefined) this.#residents.push(held.instance);
    held.verified = true;
    return true;
  }

  /** The service that the action runs on. */
  instanceOf(actionId: string): ServiceInstance | undefined {
    const instance = this.#held.get(actionId)?.instance;
    return instance && { service: instance.service, dop: instance.dop, chunk: instance.chunk };
  }

  release(actionId: string): void {
    const held = this.#held.get(actionId);
    if (held === undefined) return;
    this.#held.delete(actionId);
    this.#free = joinChunk(this.#free, held.chunk, this.#largest);
  }

  /** The service's process is gone: it no longer counts as resident. */
  lost(instance: ServiceInstance): void {
    this.#residents = this.#residents.filter(
      (r) => r.service !== instance.service || r.dop !== instance.dop || !sameChunk(r.chunk, instance.chunk),
    );
  }

  endTrajectory(): void {}

  nextChangeMs(): undefined {
    return undefined;
  }

  #variant(service: string, dop: number): z.infer<typeof Variant> | undefined {
    return this.#services.get(service)?.find((v) => v.dop === dop);
  }

  #freeChunkAround(chunk: Chunk): Chunk | undefined {
    return this.#free.find((c) => contains(c, chunk));
  }

  /**
   * The smallest free chunk that holds the interval; among those one that caches the service; then the one whose
   * evictions were used longest ago. Which interval of a chunk is taken leaves the same sizes behind, so it is free.
   */
  #choose(size: number, service: string | undefined, dop: number, neededBytes: number) {
    let best:
      | { from: Chunk; chunk: Chunk; instance: Resident | undefined; evicting: Resident[]; rank: number[] }
      | undefined;
    for (const from of this.#free) {
      for (let start = from.start; start + size <= from.start + from.size; start += size) {
        const chunk = { node: from.node, start, size };
        const instance = this.#residents.find(
          (r) => r.service === service && r.dop === dop && sameChunk(r.chunk, chunk),
        );
        const evicting = instance === undefined ? this.#toEvict(chunk, neededBytes) : [];
        const newest = evicting.reduce((latest, r) => Math.max(latest, r.usedAt), 0);
        const rank = [from.size, instance === undefined ? 1 : 0, newest, from.node, start];
        if (best === undefined || lexicallyBefore(rank, best.rank)) best = { from, chunk, instance, evicting, rank };
      }
    }
    return best;
  }

  /** Least recently used first, among those on a device that still lacks room (GP4). */
  #toEvict(chunk: Chunk, neededBytes: number): Resident[] {
    const here = this.#residents.filter((r) => overlaps(r.chunk, chunk)).sort((a, b) => a.usedAt - b.usedAt);
    const evicting: Resident[] = [];
    const overfull = (device: number): boolean => {
      const on = { node: chunk.node, start: device, size: 1 };
      const stay = here.filter((r) => !evicting.includes(r) && overlaps(r.chunk, on));
      return stay.reduce((sum, r) => sum + r.memoryBytes, neededBytes) > this.#memoryBytes;
    };
    for (const resident of here) {
      const from = Math.max(chunk.start, resident.chunk.start);
      const to = Math.min(chunk.start + chunk.size, resident.chunk.start + resident.chunk.size);
      for (let device = from; device < to; device++) {
        if (!overfull(device)) continue;
        evicting.push(resident);
        break;
      }
    }
    return evicting;
  }
}

const sameChunk = (a: Chunk, b: Chunk): boolean => a.node === b.node && a.start === b.start && a.size === b.size;

const contains = (outer: Chunk, inner: Chunk): boolean =>
  outer.node === inner.node && outer.start <= inner.start && inner.start + inner.size <= outer.start + outer.size;

const overlaps = (a: Chunk, b: Chunk): boolean =>
  a.node === b.node && a.start < b.start + b.size && b.start < a.start + a.size;

function lexicallyBefore(a: readonly number[], b: readonly number[]): boolean {
  for (let i = 0; i < a.length; i++) if (a[i] !== b[i]) return a[i]! < b[i]!;
  return false;
}
