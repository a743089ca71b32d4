/**
 * Groups whose classes decide between steps how many devices each of their ranks spans: brings what ranks report to the class's
 * sizer, and what that decides to the cluster.
 *
 * Owner of: the reports of steps that are not committed yet, the sizes that each such group has, and the change that waits for the
 * next boundary. What is decided, and why, is the sizer's.
 */
import { setImmediate as pause } from "node:timers/promises";
import { type PlacementMode, type Plan, problemsOf, TreadleError } from "@treadle/contracts";
import { resolvePlacement } from "@treadle/planner";
import type { RankSizer, RankSizing } from "../../author/rank-sizer.ts";
import { ChangeCosts } from "./change-costs.ts";
import { type Component, isSizer } from "./component.ts";
import type { PlacementFacts, PlannedChange } from "./placement-facts.ts";

type Sizes = Pick<PlacementFacts["components"][number], "degrees" | "devicesPerRank">;

type Group = {
  readonly sizer: RankSizer;
  /** undefined: equal ranks, as the run begins */
  degrees: readonly number[] | undefined;
  /** by step and rank: a rank that starts its call over says it again */
  readonly reports: Map<number, Map<number, unknown>>;
};

/** What they do with the run. */
export type SizedCluster = {
  /** as all groups are sized now */
  readonly placementFacts: PlacementFacts;
  place(): Plan;
  adopt(planned: PlannedChange): Promise<boolean>;
};

export type SizedRanksOptions = {
  readonly mode: PlacementMode;
  readonly totalSteps: number;
  /** why the sizes of a group stay as they are */
  readonly tell: (line: string) => void;
};

export class SizedRanks {
  readonly #options: SizedRanksOptions;
  readonly #groups = new Map<string, Group>();
  readonly #costs = new ChangeCosts();
  #next: { readonly name: string; readonly degrees: readonly number[]; readonly why: string } | undefined;

  constructor(options: SizedRanksOptions) {
    this.#options = options;
  }

  /** What the class says of the devices of each rank, and what was decided since. */
  of({ name, workerClass, config }: Component): Sizes {
    const sized = workerClass.degrees(config);
    if (!isSizer(sized)) return sized === undefined ? {} : { degrees: [...sized] };
    const group = this.#groups.get(name) ?? { sizer: sized, degrees: undefined, reports: new Map() };
    this.#groups.set(name, group);
    return group.degrees ? { degrees: [...group.degrees] } : { devicesPerRank: group.sizer.devicesPerRank };
  }

  /** The group has ended; one of its name may come. */
  ended(name: string): void {
    this.#groups.delete(name);
    if (this.#next?.name === name) this.#next = undefined;
  }

  /** A rank has said what it saw of a step. Throws `link.protocol` for what its class does not know. */
  told(name: string, rank: number, step: number, report: unknown): void {
    const group = this.#groups.get(name);
    const parsed = group?.sizer.report.safeParse(report);
    if (!group || !parsed?.success)
      throw new TreadleError(
        "link.protocol",
        `'${name}/${rank}' reports of step ${step} what its class does not size ranks by: ${parsed?.error ? problemsOf(parsed.error) : "it sizes none"}`,
      );
    const reports = group.reports.get(step) ?? new Map<number, unknown>();
    group.reports.set(step, reports.set(rank, parsed.data));
  }

  /** A step is committed. Resolves when it is decided what follows from it. */
  async committed(step: number, seconds: number, cluster: SizedCluster): Promise<void> {
    this.#costs.stepEnded(seconds, performance.now());
    for (const [name, { sizer, reports }] of this.#groups) {
      const told = reports.get(step);
      reports.delete(step);
      if (told === undefined) continue;
      sizer.stepEnded([...told.values()]);
      // A change that waits goes first.
      if (this.#next !== undefined) continue;
      const looking = sizer.look(this.#sizing(name, step, cluster));
      let looked = looking.next();
      for (; !looked.done; looked = looking.next()) await pause();
      if (looked.value === undefined) continue;
      const { degrees, why } = looked.value;
      const said = `'${name}': ${why}`;
      if (degrees) this.#next = { name, degrees, why: said };
      else this.#options.tell(said);
    }
  }

  /** The change that is due, if one is. */
  between(cluster: SizedCluster): (() => Promise<void>) | undefined {
    const next = this.#next;
    if (next === undefined) return undefined;
    return async () => {
      const { name, degrees, why } = next;
      const group = this.#groups.get(name) as Group;
      const beganMs = performance.now();
      try {
        const plan = planWith(cluster, this.#options.mode, name, { degrees: [...degrees] });
        if (!(await cluster.adopt({ plan, why: [why] }))) return;
        group.degrees = degrees;
        this.#costs.began(beganMs);
      } catch (error) {
        // Nodes may have gone since.
        if (!(error instanceof TreadleError) || !error.code.startsWith("placement.")) throw error;
        this.#options.tell(`'${name}' keeps its ranks: ${error.message}`);
      }
      this.#next = undefined;
    };
  }

  #sizing(name: string, step: number, cluster: SizedCluster): RankSizing {
    const { components } = cluster.place();
    const { devicesPerRank } = (this.#groups.get(name) as Group).sizer;
    const planned = (sizes: Sizes): Plan["components"] | undefined => {
      try {
        return planWith(cluster, this.#options.mode, name, sizes).components;
      } catch (error) {
        if (error instanceof TreadleError) return undefined;
        throw error;
      }
    };
    const sizesIn = (all: Plan["components"]) => all[name]?.ranks.map(({ devices }) => devices.length) ?? [];
    const others = (all: Plan["components"]) => JSON.stringify(Object.entries(all).filter(([each]) => each !== name));
    const current = sizesIn(components);
    const equal = planned({ devicesPerRank });
    return {
      current,
      devices: (equal ? sizesIn(equal) : current).reduce((sum, each) => sum + each, 0),
      stepsLeft: this.#options.totalSteps - step,
      changeSeconds: this.#costs.seconds,
      canPlace: (degrees) => {
        const changed = planned({ degrees: [...degrees] });
        return changed !== undefined && others(changed) === others(components); // nobody else is to move for it
      },
    };
  }
}

function planWith({ placementFacts }: SizedCluster, mode: PlacementMode, name: string, sizes: Sizes): Plan {
  const components = placementFacts.components.map((component) => {
    if (component.name !== name) return component;
    const { degrees: _, devicesPerRank: _size, ...others } = component;
    return { ...others, ...sizes };
  });
  return resolvePlacement({ ...placementFacts, components, mode });
}
