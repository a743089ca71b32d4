/** `treadle plan`: the best way to run a workflow by its profile, here or on another cluster; runs nothing. */

import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { basename, resolve } from "node:path";
import { type DeviceSpec, type EngineFacts, type ModelWork, Profile, TreadleError } from "@treadle/contracts";
import { type PlannedCase, planPage, type RefusedCase } from "@treadle/dashboard";
import {
  areSameWays,
  isRehearsed,
  type ModelEngine,
  type PlanFromProfile,
  planFromProfile,
  type Rehearsal,
  rehearsedDevices,
  rehearsedWays,
  slowestWays,
  type WeightPath,
  type WeightWays,
  weightPaths,
  withArithmetic,
} from "@treadle/planner";
import { keptProfiles, validateWorkflow, writeProfile } from "@treadle/runtime/runner";
import { Command } from "commander";
import { renderBeside } from "../view/beside-text.ts";
import { renderPlan, renderRefused } from "../view/plan-text.ts";
import { describeMismatch } from "../view/profile-match.ts";
import { renderRehearsal } from "../view/rehearsal-text.ts";
import { singleLine } from "../view/text.ts";
import { type ComparedBeside, checkBatch, compareBeside, type PlannedBeside, whereItFits } from "./beside.ts";
import { knownProfile } from "./known-profile.ts";
import { measureProfile } from "./measure.ts";
import { realNumber, wholeNumber } from "./number-flags.ts";
import { findProjectRoot } from "./project.ts";
import { type RehearsalFlags, type Rehearsed, type Rehearser, rehearsalOf, withRehearsal } from "./rehearsal.ts";
import { repeated, withSettings } from "./settings.ts";

type PlanFlags = RehearsalFlags & {
  readonly profile?: string;
  readonly config?: string;
  readonly set: readonly string[];
  readonly devices?: string;
  readonly whatIf: readonly string[];
  readonly beside: readonly string[];
  readonly turn: string;
  readonly deadlineMs: string;
  readonly html?: string;
  readonly json?: boolean;
  readonly saveProfile?: string;
};

/** Devices, items, steps and milliseconds that a question may have. */
const mostCounted = 65536;

export function planCommand(): Command {
  return withRehearsal(withSettings(new Command("plan")))
    .description("finds the best plan for a profiled workflow, shows it beside the best of each mode, and says why")
    .argument("<workflow>", "folder of the workflow, as workflows/reasoning-grpo")
    .option("--profile <file>", "default: where 'treadle profile' keeps it")
    .option("--config <file>", "configuration file (default: config.yaml of the workflow)")
    .option("--devices <number>", "plans for so many devices instead of those of the configuration")
    .option(
      "--what-if <changes>",
      "plans for another cluster beside this one, as 'devices=256', 'batch=512', 'staleness=1' or a device kind, as 'cpu=64'; several with commas; may be repeated",
      repeated,
      [],
    )
    .option(
      "--beside <workflow|run>",
      "also what it loses and gains where another workflow, or a run by its folder, has the same devices; may be repeated",
      repeated,
      [],
    )
    .option("--turn <seconds>", "of the runs beside each other, as for 'treadle multiplex'", "10")
    .option(
      "--deadline-ms <number>",
      "ends each search after this long, with the best plan so far and how far it can be from the best",
      "2000",
    )
    .option("--save-profile <file>", "keeps what the first plan rests on, for 'treadle simulate --profile'")
    .option("--html <file>", "also as a page to look at")
    .option("--json", "prints one object on standard output and nothing else there")
    .action(async (workflow: string, flags: PlanFlags) => {
      const name = basename(resolve(workflow));
      const projectRoot = findProjectRoot();
      const configured = { workflow, configFile: flags.config, overrides: flags.set, projectRoot };
      const profile = await knownProfile(
        { workflow, projectRoot, flags },
        {
          check: () => validateWorkflow(configured),
          isTerminal: process.stdin.isTTY === true && process.stdout.isTTY === true,
          confirm,
          measure: async () => (await measureProfile(workflow, flags)).profile,
        },
      );
      const deadlineMs = positive("--deadline-ms", flags.deadlineMs);
      const planned: PlannedCase[] = [];
      const whatIfs: (PlannedCase | RefusedCase)[] = [];
      const rehearsed = new Map<PlannedCase | RefusedCase, Rehearsed>();
      const turnSeconds = realNumber("--turn", flags.turn, { above: 0 });
      let on: PlannedBeside["on"] = () => undefined;
      const { keys, config } = await validateWorkflow({
        ...configured,
        decide: (
          { components, devices, nodeGroups, explicit: pinned, batchItems, maxStaleness, wishes },
          { placement },
          launched,
        ) => {
          const { trialTolerance } = placement.auto;
          const rehearsal = rehearsalOf(flags, profile, launched, new Date().toISOString(), keptProfiles(projectRoot));
          const count = flags.devices === undefined ? undefined : positive("--devices", flags.devices);
          const here = rehearsal
            ? inPlaceOf(devices, rehearsal.device, count, components)
            : count === undefined
              ? devices
              : resize(devices, count);
          const asIs = { devices: here, batch: batchItems ?? profile.graph.batch, maxStaleness };
          const changed = flags.whatIf.map((text) => change(text, asIs));
          const planOf = ({ title, ...target }: Titled, isFirst: boolean): PlannedCase => {
            const startedMs = performance.now();
            const limits = { deadlineMs, nowMs: () => performance.now() };
            const count = target.devices.filter(({ kind }) => kind === rehearsal?.device).length;
            const plan = (known: Profile) => {
              const wanted = { components, nodeGroups, pinned, trialTolerance, wishes, ...target, ...limits };
              if (isFirst) on = (some) => whereItFits(() => planFromProfile(known, { ...wanted, devices: some }).plan);
              return planFromProfile(known, wanted);
            };
            const engines = enginesOf(launched);
            const estimated =
              rehearsal && planRehearsed(rehearsal, { devices: count, batch: target.batch }, engines, plan);
            const found = estimated?.found ?? plan(profile);
            const weights = estimated?.weights ?? weightPaths(found.plan, engines);
            const one = { title, ...target, found, searchMs: performance.now() - startedMs, weights };
            if (estimated) rehearsed.set(one, estimated);
            return one;
          };
          const own = planOf({ title: name, ...asIs }, true);
          planned.push(own);
          whatIfs.push(...changed.map((target) => orRefused(target, () => planOf(target, false))));
          return { plan: own.found.plan, why: [] };
        },
      });
      const own = planned[0]!;
      const cases = [own, ...whatIfs] as const;
      const first = rehearsed.get(own);
      const mismatch = describeMismatch(profile, first ? onlyOf(keys, first.rehearsal.others) : keys);
      if (mismatch !== undefined) process.stderr.write(`! ${singleLine(mismatch)}\n`);
      const plannedFor = first?.rehearsal.profile ?? profile;
      if (flags.saveProfile !== undefined) await saveProfile(resolve(flags.saveProfile), plannedFor);
      if (flags.html !== undefined)
        writeFileSync(flags.html, planPage(first ? `${name}, ${plannedFor.hardware.description}` : name, cases));
      const { devices, found, batch } = own;
      if (flags.beside.length > 0) checkBatch(name, plannedFor, batch);
      const here = { name, profile: plannedFor, plan: found.plan, devices, pool: config.pool, on };
      const beside =
        flags.beside.length === 0
          ? undefined
          : await compareBeside(here, flags.beside, { projectRoot, turnSeconds, deadlineMs });
      if (flags.json) {
        const estimateOf = (one: PlannedCase) => rehearsed.get(one)?.rehearsal;
        process.stdout.write(`${JSON.stringify(toJson(plannedFor, cases, estimateOf, beside))}\n`);
        return;
      }
      const columns = process.stdout.columns ?? 100;
      const head = first ? [...renderRehearsal(first.rehearsal, first.setting, columns), ""] : [];
      const plansText = cases.flatMap((one) =>
        "refused" in one
          ? renderRefused(one, { columns })
          : renderPlan(one, one === own ? undefined : own, { columns }),
      );
      const lines = [...head, ...plansText, ...(beside ? [...renderBeside(beside), ""] : [])];
      process.stdout.write(`${lines.join("\n")}\n`);
      if (flags.html !== undefined) process.stdout.write(`\n${flags.html}: the same as a page\n`);
    });
}

async function confirm(message: string): Promise<boolean> {
  const { default: select } = await import("@inquirer/select");
  const choices = [
    { value: true, name: "yes" },
    { value: false, name: "no" },
  ];
  return select({ message, choices });
}

/**
 * Which way new weights take depends on the plan, and the plan on what they take: it is made again until both agree, each time
 * with the slowest way of any of these plans.
 */
function planRehearsed(
  rehearsal: Rehearser,
  target: Parameters<Rehearser["at"]>[0],
  engines: readonly ModelEngine[],
  plan: (profile: Profile) => PlanFromProfile,
): Rehearsed & { readonly found: PlanFromProfile; readonly weights: readonly WeightPath[] } {
  let ways: WeightWays = {};
  while (true) {
    const estimated = rehearsal.at({ ...target, ways });
    const found = withArithmetic(estimated.rehearsal, () => plan(estimated.rehearsal.profile));
    const now = rehearsedWays(found.plan, engines, rehearsal.device);
    const slower = slowestWays(ways, now.ways);
    if (areSameWays(ways, slower)) return { ...estimated, found, weights: now.paths };
    ways = slower;
  }
}

/** Of those that say what their engines are. */
const enginesOf = (launched: readonly LaunchedModel[]): ModelEngine[] =>
  launched.flatMap(({ name, config, workerClass }) => {
    const { modelWork: work } = workerClass;
    const engine = workerClass.engineFacts(config);
    return work && engine ? [{ name, work, engine }] : [];
  });

type LaunchedModel = {
  readonly name: string;
  readonly config: unknown;
  readonly workerClass: {
    readonly modelWork: ModelWork | undefined;
    engineFacts(config: unknown): EngineFacts | undefined;
  };
};

const onlyOf = (keys: ReadonlyMap<string, string>, names: readonly string[]): ReadonlyMap<string, string> =>
  new Map([...keys].filter(([name]) => names.includes(name)));

/** What was measured is not replaced by what was estimated, nor anything else by either. */
async function saveProfile(path: string, profile: Profile): Promise<void> {
  if (existsSync(path) && !isEstimate(path)) {
    throw new TreadleError(
      "config.invalid",
      `--save-profile '${path}' is there already, and no estimate: it is not replaced; give a file that is not there yet`,
    );
  }
  await writeProfile(path, profile);
}

function isEstimate(path: string): boolean {
  try {
    return isRehearsed(Profile.parse(JSON.parse(readFileSync(path, "utf8"))));
  } catch {
    return false;
  }
}

/** What cannot be planned is told in its place; the others are planned all the same. */
function orRefused(
  { title, devices, batch, maxStaleness }: Titled,
  plan: () => PlannedCase,
): PlannedCase | RefusedCase {
  try {
    return plan();
  } catch (error) {
    if (!(error instanceof TreadleError) || !error.code.startsWith("placement.")) throw error;
    const { code, message } = error;
    return { title, devices, batch, maxStaleness, refused: { code, message } };
  }
}

/** `estimateOf` a case, where nothing was measured. */
function toJson(
  profile: Profile,
  cases: readonly (PlannedCase | RefusedCase)[],
  estimateOf: (one: PlannedCase) => Rehearsal | undefined,
  beside: ComparedBeside | undefined,
): object {
  return {
    ...(beside ? { beside } : {}),
    workflow: profile.workflow,
    hardware: profile.hardware.description,
    plans: cases.map((one) => {
      const { title, devices, batch, maxStaleness } = one;
      const asked = { title, devices: devices.length, batch, maxStaleness };
      if ("refused" in one) return { ...asked, refused: one.refused };
      const { searchMs, weights, found } = one;
      const estimate = estimateOf(one);
      return {
        ...asked,
        searchMs,
        weights,
        ...(estimate && { estimates: estimate.parts }),
        ...(estimate?.calibratedBy && { calibratedBy: estimate.calibratedBy }),
        ...found,
      };
    }),
  };
}

/** Those of the first kind become others; they stay as well where a component asks for them by name. */
function inPlaceOf(
  devices: readonly DeviceSpec[],
  device: string,
  count: number | undefined,
  components: readonly { readonly deviceKind?: string | undefined }[],
): DeviceSpec[] {
  const { kind: replaced } = devices[0]!;
  const named = new Set(components.map(({ deviceKind }) => deviceKind));
  const others = devices.filter(({ kind }) => kind !== device && (kind !== replaced || named.has(kind)));
  return [...rehearsedDevices(device, count ?? devices.filter(({ kind }) => kind === replaced).length), ...others];
}

type Target = {
  readonly devices: readonly DeviceSpec[];
  readonly batch: number;
  readonly maxStaleness: number;
};

type Titled = Target & { readonly title: string };

/** `devices=256,batch=512`: of a cluster with several kinds, `devices` are those of the kind that there are most of. */
function change(text: string, target: Target): Titled {
  let changed = target;
  for (const part of text.split(",")) {
    const [key = "", value = ""] = part.split("=").map((side) => side.trim());
    const kinds = [...new Set(target.devices.map((device) => device.kind))];
    if (key === "devices")
      changed = { ...changed, devices: resize(changed.devices, positive("--what-if devices", value)) };
    else if (key === "batch") changed = { ...changed, batch: positive("--what-if batch", value) };
    else if (key === "staleness")
      changed = { ...changed, maxStaleness: wholeNumber("--what-if staleness", value, { most: mostCounted }) };
    else if (kinds.includes(key))
      changed = { ...changed, devices: resize(changed.devices, positive(`--what-if ${key}`, value), key) };
    else {
      const known = ["devices", "batch", "staleness", ...kinds].map((k) => `'${k}'`).join(", ");
      throw new TreadleError("problem.invalid", `--what-if '${text}' is not understood: '${key}' is none of ${known}`);
    }
  }
  return { ...changed, title: `what if ${text.replaceAll(",", ", ")}` };
}

const positive = (flag: string, text: string): number => wholeNumber(flag, text, { least: 1, most: mostCounted });

/** As many devices of a kind, by default the most frequent, alike the ones there are, and as many on a node. */
function resize(devices: readonly DeviceSpec[], count: number, kind = mostFrequentKind(devices)): DeviceSpec[] {
  const known = devices.filter((device) => device.kind === kind);
  const others = devices.filter((device) => device.kind !== kind);
  const nodes = [...new Set(known.map((device) => device.node))];
  const onNode = Math.ceil(known.length / nodes.length);
  const first = known[0]!;
  const added = Array.from({ length: Math.max(0, count - known.length) }, (_, i): DeviceSpec => {
    const index = known.length + i;
    return {
      ...first,
      id: `${kind}:${index}`,
      index,
      node: nodes[Math.floor(index / onNode)] ?? `node ${Math.floor(index / onNode)}`,
    };
  });
  const all = [...known.slice(0, count), ...added];
  return devices[0]!.kind === kind ? [...all, ...others] : [...others, ...all];
}

function mostFrequentKind(devices: readonly DeviceSpec[]): string {
  const counts = new Map<string, number>();
  for (const { kind } of devices) counts.set(kind, (counts.get(kind) ?? 0) + 1);
  return [...counts].reduce((a, b) => (b[1] > a[1] ? b : a))[0];
}
