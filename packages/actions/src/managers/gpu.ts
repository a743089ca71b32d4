import { z } from "zod";
import { type Chunk, carveChunk, chunkSizeFor, chunkSizes, joinChunk } from "../arrange/buddy.ts";
import { DurationHistory } from "../formulation/duration-history.ts";
import type { Grant, ResourceManager, ResourceRequest, ServiceInstance } from "./manager.ts";

/** One service at one degree of parallelism; different degrees are different services (§5.3). */
const Variant = z.strictObject({
  dop: z.int().positive().max(8),
  /** on every device */
  memoryBytes: z.number().nonnegative(),
  /** what a restore is taken to last until one was measured; nothing when absent, so that one is soon measured */
  restoreSeconds: z.number().nonnegative().optional(),
});

export const GpuCluster = z.strictObject({
  nodes: z.int().positive(),
  devicesPerNode: z.union(chunkSizes.map((s) => z.literal(s))).default(8),
  memoryBytesPerDevice: z.number().positive(),
  services: z.record(z.string().min(1), z.array(Variant).min(1)),
});
export type GpuCluster = z.input<typeof GpuCluster>;

/**
 * How a service came back: its process was started, or it was woken and took its memory back from a copy elsewhere. `otherwise`:
 * neither alone, as where it could not be woken and was started after all.
 */
export type RestoreWay = "started" | "woken" | "otherwise";

/** What restores of a service lasted so far, as means that forget; absent where there was none. */
export type RestoreCost = {
  readonly service: string;
  readonly dop: number;
  readonly startSeconds?: number | undefined;
  readonly wakeSeconds?: number | undefined;
};

/** Restores are rarer than actions, and change with what else the machine does. */
const restoreWindow = 16;

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
 * GP5 what a restore is taken to last is what earlier ones of the same service, degree and way have: one that sleeps where the
 *    action would go is woken, any other is started. What failed, or needed both, teaches nothing.
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
  /** evicted, with a copy elsewhere from which they wake at the same place */
  #asleep: ServiceInstance[] = [];
  readonly #restores = new DurationHistory(restoreWindow);
  /** by service and degree, as things stand; empty after every change */
  readonly #expected = new Map<string, number>();
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

  /** Seconds to add to an action's duration at this degree: zero where it would go to an interval that holds the service (GP5). */
  restoreSeconds(service: string, dop: number): number {
    const key = `${dop}/${service}`;
    let seconds = this.#expected.get(key);
    if (seconds === undefined) {
      seconds = this.#expect(service, dop);
      this.#expected.set(key, seconds);
    }
    return seconds;
  }

  #expect(service: string, dop: number): number {
    const variant = this.#variant(service, dop);
    const size = chunkSizeFor(dop);
    if (variant === undefined || size === undefined) return 0;
    const place = this.#choose(size, service, dop, variant.memoryBytes);
    if (place?.instance !== undefined) return 0;
    const learned = (way: RestoreWay): number | undefined => this.#restores.estimate(restoreKey(service, dop, way));
    const woken = place !== undefined && this.#sleepsAt(service, dop, place.chunk) ? learned("woken") : undefined;
    // A wake that was never seen is taken for a start, which is no shorter.
    return woken ?? learned("started") ?? variant.restoreSeconds ?? 0;
  }

  /** Of every service and degree that was restored. */
  restoreCosts(): readonly RestoreCost[] {
    return [...this.#services].flatMap(([service, variants]) =>
      variants.flatMap(({ dop }) => {
        const startSeconds = this.#restores.estimate(restoreKey(service, dop, "started"));
        const wakeSeconds = this.#restores.estimate(restoreKey(service, dop, "woken"));
        return startSeconds === undefined && wakeSeconds === undefined
          ? []
          : [{ service, dop, startSeconds, wakeSeconds }];
      }),
    );
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
    this.#expected.clear();
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
    this.#expected.clear();
    this.#residents = this.#residents.filter((r) => !held.evicting.includes(r));
    const needed = held.instance?.memoryBytes ?? 0;
    if (freeBytes.length !== held.chunk.size || freeBytes.some((bytes) => bytes < needed)) return false;
    if (held.instance !== undefined) {
      this.#residents.push(held.instance);
      this.#asleep = this.#asleep.filter(isOther(held.instance));
    }
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
    this.#expected.clear();
    this.#free = joinChunk(this.#free, held.chunk, this.#largest);
  }

  /** It was restored in so long (GP5). */
  restored({ service, dop }: ServiceInstance, way: RestoreWay, seconds: number): void {
    if (way === "otherwise") return;
    this.#restores.observe(restoreKey(service, dop, way), seconds);
    this.#expected.clear();
  }

  /** It holds no device memory any more; one that is asleep can be woken. */
  evicted(instance: ServiceInstance, isAsleep: boolean): void {
    this.lost(instance);
    if (isAsleep) this.#asleep.push(instance);
  }

  /** The service's process is gone: it no longer counts as resident, nor as asleep. */
  lost(instance: ServiceInstance): void {
    this.#expected.clear();
    this.#residents = this.#residents.filter(isOther(instance));
    this.#asleep = this.#asleep.filter(isOther(instance));
  }

  endTrajectory(): void {}

  nextChangeMs(): undefined {
    return undefined;
  }

  #variant(service: string, dop: number): z.infer<typeof Variant> | undefined {
    return this.#services.get(service)?.find((v) => v.dop === dop);
  }

  #sleepsAt(service: string | undefined, dop: number, chunk: Chunk): boolean {
    return this.#asleep.some((one) => one.service === service && one.dop === dop && sameChunk(one.chunk, chunk));
  }

  /**
   * The smallest free chunk that holds the interval; among those one that caches the service, or one where it sleeps; then the
   * one whose evictions were used longest ago. Which interval of a chunk is taken leaves the same sizes behind, so it is free.
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
        const distance = instance !== undefined ? 0 : this.#sleepsAt(service, dop, chunk) ? 1 : 2;
        const rank = [from.size, distance, newest, from.node, start];
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

const isOther =
  ({ service, dop, chunk }: ServiceInstance) =>
  (one: ServiceInstance): boolean =>
    one.service !== service || one.dop !== dop || !sameChunk(one.chunk, chunk);

const restoreKey = (service: string, dop: number, way: RestoreWay): string => `${way}/${dop}/${service}`;

const overlaps = (a: Chunk, b: Chunk): boolean =>
  a.node === b.node && a.start < b.start + b.size && b.start < a.start + a.size;

function lexicallyBefore(a: readonly number[], b: readonly number[]): boolean {
  for (let i = 0; i < a.length; i++) if (a[i] !== b[i]) return a[i]! < b[i]!;
  return false;
}
