/**
 * The ranks of a run, and where each is to be.
 *
 * Owner of: every `RankState`, what the classes of components say of them, and the nodes that are there.
 *
 * - RT1 a rank whose node is gone waits `rejoinMs` for it, then moves to one that has room; none within `placeWaitMs` more fails
 *   the run.
 * - RT2 the incarnations of a name only grow, also over plans that ended its rank meanwhile.
 * - RT3 a rank moves to no device of a component that its own is to be apart from, unless the two share devices as it is, such as
 *   while they are measured.
 */
import { type DeviceSpec, type RankPlacement, TreadleError } from "@treadle/contracts";
import type { WaitEdge } from "../device-lock/wait-for.ts";
import type { ComponentTraits } from "../runner/runner-messages.ts";
import { isLaidOutAs, stayingRanks } from "./laid-out.ts";
import { RankState } from "./rank-state.ts";
import { type Place, relocate } from "./relocate.ts";

export type RankLimits = { readonly rejoinMs: number; readonly placeWaitMs: number };

type Component = ComponentTraits & { ranks: readonly RankState[]; pastIncarnation: number };
export type Layout = Readonly<Record<string, { readonly ranks: readonly RankPlacement[] }>>;

export type Seek =
  | { readonly type: "here" }
  /** nothing can be decided before then, unless nodes come */
  | { readonly type: "wait"; readonly untilMs: number }
  | { readonly type: "move"; readonly to: Place }
  | { readonly type: "lost"; readonly error: TreadleError };

export class RankTable {
  readonly #limits: RankLimits;
  readonly #components = new Map<string, Component>();
  #present: ReadonlySet<string> = new Set();
  #places: readonly DeviceSpec[] = [];
  #all: readonly RankState[] = [];

  constructor(limits: RankLimits) {
    this.#limits = limits;
  }

  addComponent(traits: ComponentTraits): void {
    const { pastIncarnation = 0 } = this.#components.get(traits.component) ?? {}; // RT2
    this.#components.set(traits.component, { ...traits, ranks: [], pastIncarnation });
  }

  setNodes(present: readonly string[], places: readonly DeviceSpec[]): void {
    this.#present = new Set(present);
    this.#places = places;
  }

  traitsOf(component: string): ComponentTraits {
    return this.#components.get(component) as Component;
  }

  /** That are present. */
  get nodes(): readonly string[] {
    return [...this.#present];
  }

  get all(): readonly RankState[] {
    return this.#all;
  }

  /** Who waits for a message of whom. */
  get messageWaits(): WaitEdge[] {
    return this.#all.flatMap(({ worker, awaits }) =>
      awaits.map(({ from, what }) => ({ waiter: worker, waitsFor: from, on: what, kind: "message" as const })),
    );
  }

  of(component: string): readonly RankState[] {
    return this.#components.get(component)?.ranks ?? [];
  }

  /** How many each rank has. */
  devicesOf(component: string): number[] {
    return this.of(component).map(({ place }) => place.devices.length);
  }

  /** A rank by its name, as `rollout/0`. */
  get(worker: string): RankState | undefined {
    const at = worker.lastIndexOf("/");
    return this.#components.get(worker.slice(0, at))?.ranks[Number(worker.slice(at + 1))];
  }

  /** RK2. */
  present({ worker, incarnation }: { readonly worker: string; readonly incarnation: number }): RankState | undefined {
    const rank = this.get(worker);
    return rank?.incarnation === incarnation ? rank : undefined;
  }

  /** Makes the ranks of a layout; those of `staying` go on. Answers with the others. */
  layOut(component: string, placements: readonly RankPlacement[], staying: ReadonlySet<RankState>): RankState[] {
    const held = this.#components.get(component) as Component;
    held.pastIncarnation = Math.max(held.pastIncarnation, ...held.ranks.map(({ incarnation }) => incarnation)); // RT2
    const present = new Map(held.ranks.filter((rank) => staying.has(rank)).map((rank) => [rank.index, rank]));
    held.ranks = placements.map(
      (place, index) => present.get(index) ?? new RankState(component, index, place, held.pastIncarnation),
    );
    this.#all = [...this.#components.values()].flatMap(({ ranks }) => ranks);
    return held.ranks.filter((rank) => !staying.has(rank));
  }

  /** What another layout means for the ranks that are there. */
  changes(layout: Layout): { moved: string[]; staying: RankState[]; leaving: RankState[] } {
    const moved = [...this.#components.keys()].filter((name) => !isLaidOutAs(this.of(name), layout[name]?.ranks));
    const staying = moved.flatMap((name) => stayingRanks(this.of(name), layout[name]?.ranks, this.traitsOf(name)));
    const stays = new Set(staying);
    return { moved, staying, leaving: moved.flatMap((name) => this.of(name)).filter((rank) => !stays.has(rank)) };
  }

  isThere(node: string): boolean {
    return this.#present.has(node);
  }

  /** RT1: where a rank that waits for a place may start. */
  seek(rank: RankState, nowMs: number): Seek {
    const { node, devices } = rank.place;
    if (this.isThere(node)) return { type: "here" };
    const { rejoinMs, placeWaitMs } = this.#limits;
    const rejoinAtMs = (rank.sinceMs ?? nowMs) + rejoinMs;
    if (nowMs < rejoinAtMs) return { type: "wait", untilMs: rejoinAtMs };
    const roomy = this.#places.filter((device) => this.isThere(device.node) && this.#hasRoom(rank, device));
    const to = relocate(devices, roomy, (device) => this.#ranksOn(device));
    if (to) return { type: "move", to };
    if (nowMs < rejoinAtMs + placeWaitMs) return { type: "wait", untilMs: rejoinAtMs + placeWaitMs };
    const { apart = [] } = this.traitsOf(rank.component);
    const other =
      devices.length === 0
        ? "no other came"
        : `no other had devices like ${devices.join(", ")} with room for it${apart.length > 0 ? `, apart from ${apart.map((name) => `'${name}'`).join(", ")}` : ""}`;
    const error = new TreadleError(
      "node.lost",
      `no node is left for '${rank.worker}': '${node}' is gone, and within cluster.placeWaitMs (${placeWaitMs} ms) ${other}; start a node agent, then 'treadle resume', or raise that limit`,
      { origin: { worker: rank.worker, node } },
    );
    return { type: "lost", error };
  }

  /** RT3, and of ranks of one component: those that hold one state together compute together, and must fit together; others take turns on a device. */
  #hasRoom(rank: RankState, { id, memoryBytes }: DeviceSpec): boolean {
    const { restart, apart = [] } = this.traitsOf(rank.component);
    if (apart.some((other) => holds(this.of(other), id) && !this.#shareDevices(rank.component, other))) return false;
    if (restart !== "group") return true;
    const mates = this.of(rank.component).filter((each) => each !== rank && each.place.devices.includes(id));
    if (mates.length === 0) return true;
    return mates.reduce((sum, each) => sum + each.memoryBytes, rank.memoryBytes) <= memoryBytes;
  }

  #shareDevices(a: string, b: string): boolean {
    return this.of(a).some(({ place }) => place.devices.some((device) => holds(this.of(b), device)));
  }

  #ranksOn(device: string): number {
    return this.all.filter((rank) => rank.place.devices.includes(device)).length;
  }
}

const holds = (ranks: readonly RankState[], device: string): boolean =>
  ranks.some(({ place }) => place.devices.includes(device));
