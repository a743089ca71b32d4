/**
 * `placement.mode: auto`: brings what steps cost to the replanner, and its plans to the cluster, between steps.
 *
 * Owner of: the observations of steps that are not committed yet, and the plan change that waits for the next boundary.
 * What is decided, and why, is `ReplannerState`'s.
 */
import { resolve } from "node:path";
import { type FlowGraph, type ObservedCall, type Profile, type RuntimeConfig, TreadleError } from "@treadle/contracts";
import {
  type ComponentTraits,
  checkWishes,
  type KnownComponent,
  knownComponents,
  type PlanCandidate,
  planFromProfile,
  ReplannerState,
  refuseDegrees,
  type TrialStakes,
  usableDevices,
  withSlots,
  withWishes,
} from "@treadle/planner";
import { ChangeCosts } from "./change-costs.ts";
import { type Component, isSizer } from "./component.ts";
import type { PlacementFacts, Placer, PlannedChange, PlanTarget } from "./placement-facts.ts";
import {
  calibrationPath,
  componentKey,
  describeHardware,
  keptProfiles,
  modelSizes,
  profilePath,
  readProfile,
  writeProfile,
} from "./profile-store.ts";

/** The best plan found by then is taken; what remains to be gained is in its explanation. */
const searchDeadlineMs = 2000;

/** Who hears of what it learns. */
export type AutoPlacementPorts = {
  /** after each step */
  readonly learnt: (learnt: Learnt) => void;
  /** a profile that could not be kept, which costs the next run its time; steps that take another time, and why not */
  readonly warn: (text: string) => void;
};

/** What is known by now. */
export type Learnt = {
  readonly graph: FlowGraph | undefined;
  readonly profile: Profile | undefined;
  /** where it is kept */
  readonly path: string;
  /** nothing is measured or tried any more */
  readonly isSettled: boolean;
};

export type AutoPlacementOptions = {
  readonly workflow: string;
  /** of the workflow */
  readonly folder: string;
  readonly projectRoot: string;
  readonly config: RuntimeConfig;
  /** measure even where a profile matches */
  readonly measureAnew?: boolean | undefined;
};

export class AutoPlacement implements Placer {
  readonly #options: AutoPlacementOptions;
  readonly #ports: AutoPlacementPorts;
  readonly #calls = new Map<number, ObservedCall[]>();
  #replanner: ReplannerState | undefined;
  #next: PlannedChange | undefined;
  #written: Profile | undefined;
  #numSteps = 0;
  #lastStep = 0;
  readonly #costs = new ChangeCosts();
  /** until what it cost is told, which is counted from the beginning of the first step: every run launches */
  #isSought = false;
  #soughtSinceMs: number | undefined;

  constructor(options: AutoPlacementOptions, ports: AutoPlacementPorts) {
    this.#options = options;
    this.#ports = ports;
  }

  /** The first plan, or the first one for other devices. */
  plan(given: PlacementFacts, launched: readonly Component[]): PlannedChange {
    refuseDegrees(given.components);
    refuseSizers(launched);
    const wanted = withWishes(given);
    const facts = withSlots(wanted);
    const { workflow, config } = this.#options;
    const without = new Set(wanted.components.flatMap(({ name, devices }) => (devices === undefined ? [] : [name])));
    const traits = this.#traits(facts, launched, without);
    const hardware = describeHardware(wanted.devices);
    const { profile, why } = this.#known(hardware.key, traits, facts);
    // A run would measure for a while, and then have no plan to go on with. What wishes take away is known to be their doing.
    if (profile === undefined)
      checkWishes({
        ...{
          components: given.components,
          devices: given.devices,
          numbered: given.numbered,
          nodeGroups: given.nodeGroups,
        },
        ...{ pinned: given.explicit, wishes: given.wishes },
        ...{ deadlineMs: searchDeadlineMs, nowMs: () => performance.now() },
      });
    const { components, devices, numbered, nodeGroups, explicit: pinned } = facts;
    this.#replanner = new ReplannerState({
      devices,
      numbered,
      components,
      nodeGroups,
      batch: config.batch,
      maxStaleness: config.flow.maxStaleness,
      pinned,
      traits,
      header: { workflow, createdAt: new Date().toISOString(), hardware },
      profile,
      known: profile ? undefined : this.#knownOfOthers(hardware.key, traits),
      propose: (known) => this.#propose(known, given),
      options: config.placement.auto,
    });
    this.#written = profile;
    this.#next = undefined;
    this.#isSought = true;
    this.#soughtSinceMs = undefined;
    this.#numSteps = 0;
    const first = this.#replanner.start(this.#stakes);
    return { ...first, why: [...why, ...first.why] };
  }

  /** A step is committed. */
  committed(step: number, seconds: number): void {
    const calls = this.#calls.get(step) ?? [];
    this.#calls.delete(step);
    this.#lastStep = step;
    // Steps that were begun under a plan that is about to go say nothing of the next one.
    if (this.#next || !this.#replanner) return;
    this.#numSteps++;
    this.#soughtSinceMs ??= performance.now() - 1000 * seconds;
    this.#costs.stepEnded(seconds, performance.now());
    const wasSettled = !this.#replanner.observes;
    const next = this.#replanner.step(seconds, calls, this.#stakes);
    if (wasSettled && this.#replanner.observes) {
      this.#numSteps = 0;
      this.#soughtSinceMs = performance.now();
    }
    if (next) this.#isSought = true; // once more, where steps have drifted
    this.#next = next?.phase === "chosen" ? this.#withCost(next) : next;
    if (this.#replanner.news !== undefined) this.#ports.warn(this.#replanner.news);
    this.#keep();
    const { graph, profile, observes } = this.#replanner;
    this.#ports.learnt({ graph, profile, path: this.#path, isSettled: !observes });
  }

  /** What it has cost this run to find the plan, restarts of processes included. */
  #withCost(chosen: PlannedChange): PlannedChange {
    if (!this.#isSought || this.#soughtSinceMs === undefined) return chosen;
    const seconds = (performance.now() - this.#soughtSinceMs) / 1000;
    this.#isSought = false;
    const cost = `finding the plan took ${seconds.toFixed(1)} s and ${this.#numSteps} steps of this run`;
    return { ...chosen, why: [...chosen.why, cost] };
  }

  /** What the run has spent on a plan that it did not live to go on with: for its end. */
  get spentInVain(): string | undefined {
    if (!this.#isSought || this.#soughtSinceMs === undefined || !this.#replanner?.observes) return undefined;
    const seconds = (performance.now() - this.#soughtSinceMs) / 1000;
    const steps = this.#numSteps === 1 ? "1 step" : `${this.#numSteps} steps`;
    const rest = this.#replanner.profile
      ? "what was measured is kept, so the next run begins with the best plan by it"
      : "nothing is kept, so the next run measures again; give it more steps, or measure once with 'treadle profile'";
    return `the run ended while automatic placement still looked for a plan, on which ${steps} and ${seconds.toFixed(1)} s went; ${rest}`;
  }

  /** The change that is due, if one is. */
  between(target: PlanTarget): (() => Promise<void>) | undefined {
    const next = this.#next;
    if (!next) return undefined;
    return async () => {
      if (this.#replanner?.wantsSwaps) this.#replanner.swapsMeasured(await target.measureSwaps());
      const beganMs = performance.now();
      if (!(await target.adopt(next))) return;
      this.#next = undefined;
      this.#costs.began(beganMs);
    };
  }

  get #stakes(): TrialStakes {
    const stepsLeft = Math.max(0, this.#options.config.steps - this.#lastStep);
    return { stepsLeft, changeSeconds: this.#costs.seconds };
  }

  #propose(profile: Profile, facts: PlacementFacts): PlanCandidate[] {
    const { components, devices, numbered, nodeGroups, explicit: pinned, maxStaleness, wishes } = facts;
    const { batch } = this.#options.config;
    const { alternatives, explanation, limits } = planFromProfile(profile, {
      components,
      devices,
      numbered,
      nodeGroups,
      pinned,
      batch,
      maxStaleness,
      wishes,
      deadlineMs: searchDeadlineMs,
      nowMs: () => performance.now(),
    });
    return alternatives.map(({ plan, stepSeconds, stepDeviation, limits: own }, rank) => ({
      plan: { ...plan, explanation: [] },
      predictedSeconds: stepSeconds,
      stepDeviation,
      explanation: rank === 0 ? [...new Set([...explanation, ...limits])] : own,
    }));
  }

  get #path(): string {
    const { projectRoot, folder, config } = this.#options;
    return profilePath(projectRoot, folder, config.placement.auto.profile);
  }

  /** While steps are measured. */
  get observer(): ((call: ObservedCall) => void) | undefined {
    return this.#replanner?.observes ? this.#observed : undefined;
  }

  readonly #observed = (call: ObservedCall): void => {
    if (call.step === undefined) return;
    const calls = this.#calls.get(call.step) ?? [];
    calls.push(call);
    this.#calls.set(call.step, calls);
  };

  #keep(): void {
    const profile = this.#replanner?.profile;
    if (!profile || profile === this.#written) return;
    this.#written = profile;
    const paths = [this.#path, calibrationPath(this.#path, profile)].filter((path) => path !== undefined);
    Promise.all(paths.map((path) => writeProfile(path, profile))).catch((error: Error) =>
      this.#ports.warn(`the profile could not be kept: ${error.message}`),
    );
  }

  #known(
    hardwareKey: string,
    traits: ReadonlyMap<string, ComponentTraits>,
    facts: PlacementFacts,
  ): { profile?: Profile; why: string[] } {
    const { workflow, config, measureAnew } = this.#options;
    if (measureAnew) return { why: [] };
    let profile: Profile;
    try {
      profile = readProfile(this.#path, workflow);
    } catch {
      return { why: [`no profile of '${workflow}' is known`] };
    }
    if (profile.hardware.key !== hardwareKey) {
      return {
        why: [`the profile of '${workflow}' was measured on ${profile.hardware.description}: it is measured again`],
      };
    }
    const changed = facts.components.filter(({ name }) => {
      const known = profile.components[name];
      return known ? known.key !== traits.get(name)?.key : !profile.graph.components[name];
    });
    if (changed.length > 0) {
      const names = changed.map(({ name }) => `'${name}'`).join(", ");
      return { why: [`${names} changed since the profile of '${workflow}' was made: it is measured again`] };
    }
    // Whole steps are comparable only where the batch is.
    return { profile: profile.graph.batch === config.batch ? profile : { ...profile, steps: [] }, why: [] };
  }

  /** A profile that no longer matches as a whole counts for what has not changed, like those of other workflows. */
  #knownOfOthers(
    hardwareKey: string,
    traits: ReadonlyMap<string, ComponentTraits>,
  ): ReadonlyMap<string, KnownComponent> | undefined {
    const { config, measureAnew, projectRoot } = this.#options;
    if (measureAnew) return undefined;
    return knownComponents(keptProfiles(projectRoot), { traits, hardwareKey, batch: config.batch });
  }

  /** `without`: those that have no devices. */
  #traits(
    facts: PlacementFacts,
    components: readonly Component[],
    without: ReadonlySet<string>,
  ): Map<string, ComponentTraits> {
    const byName = new Map(components.map((component) => [component.name, component]));
    const firstKind = facts.devices[0]?.kind;
    return new Map(
      facts.components.map((component) => {
        const kind = component.deviceKind ?? firstKind;
        const available = facts.devices.filter((device) => device.kind === kind).length;
        const perRank = component.devicesPerRank ?? 1;
        const { min = 1, fixed = min } = component.ranks ?? {};
        const launched = byName.get(component.name) as Component;
        const folder = launched.workerClass.engineFacts(launched.config)?.modelFolder;
        const model = folder === undefined ? undefined : modelSizes(resolve(this.#options.projectRoot, folder));
        const traits: ComponentTraits = {
          key: componentKey(launched, this.#options.projectRoot),
          ...(launched.workerClass.restart === "group" ? { gang: true } : {}),
          ...(model && { model }),
          ...(without.has(component.name)
            ? { devices: "none" as const }
            : component.deviceKind
              ? { deviceKind: component.deviceKind }
              : {}),
          devicesPerRank: perRank,
          // Ranks share a device only where there are fewer devices than ranks.
          minDevices: Math.max(perRank, Math.min(fixed * perRank, available)),
          maxDevices: Math.max(perRank, usableDevices(component, available) ?? perRank),
        };
        return [component.name, traits];
      }),
    );
  }
}

/** Sizes of ranks that change beside the plan would be measured as one. */
function refuseSizers(components: readonly Component[]): void {
  const sizing = components.find(({ workerClass, config }) => isSizer(workerClass.degrees(config)));
  if (sizing === undefined) return;
  throw new TreadleError(
    "placement.impossible",
    `placement.mode 'auto' measures ranks of one size, and component '${sizing.name}' has theirs decided between steps; choose the mode 'temporal', 'spatial' or 'hybrid', or leave the sizes of its ranks to 'auto'`,
    { details: { component: sizing.name } },
  );
}
