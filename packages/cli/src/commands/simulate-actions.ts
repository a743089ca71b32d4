/** `treadle simulate actions`: action-level scheduling against pods, fixed degrees and dedicated GPUs, on virtual time. */

import { writeFile } from "node:fs/promises";
import { actionComparisonPage } from "@treadle/dashboard";
import { validateConfig } from "@treadle/runtime/runner";
import {
  ActionScenario,
  actionScenarios,
  behindFixed,
  type CodingComparison,
  compareCoding,
  compareServices,
  compareSuites,
  paperFigures,
  type ServiceComparison,
} from "@treadle/simulation";
import type { Command } from "commander";
import {
  behindTable,
  codingHeader,
  codingRow,
  paperTable,
  serviceHeader,
  serviceRow,
} from "../view/action-comparison-table.ts";
import { scenarioCommand, scenarioFlags, scenarioValues } from "./scenario.ts";

type Flags = {
  readonly scenario: string;
  readonly seed?: string | undefined;
  readonly podRate?: string;
  readonly podsPerNode?: string;
  readonly podRequest?: string;
  readonly podLimit?: string;
  readonly podStart?: string;
  readonly allNodes?: boolean;
  readonly json?: boolean;
  readonly html?: string | true;
};

export function simulateActionsCommand(): Command {
  return scenarioCommand("actions", actionScenarios, "paper-small")
    .description("tools and rewards on virtual time: scheduled one by one, by fixed degrees, or in a pod a trajectory")
    .option("--pod-rate <number>", "pods that the control plane creates a second")
    .option("--pods-per-node <count>", "at most")
    .option("--pod-request <cores>", "reserved of a node's cores")
    .option("--pod-limit <cores>", "that a pod may use")
    .option("--pod-start <seconds>", "from its creation until it runs")
    .option("--all-nodes", "simulates every node, not as many as have 256 trajectories")
    .option("--json", "prints one object")
    .option("--html [file]", "draws the curves as a page (default: actions-simulation.html)")
    .action(async (_: Flags, command: Command) => {
      const flags = scenarioFlags<Flags>(command);
      const scenario = await readScenario(flags);
      const startedMs = performance.now();
      const print = (text: string) => void (flags.json || process.stdout.write(`${text}\n`));
      const coding: CodingComparison[] = [];
      const services: ServiceComparison[] = [];
      print(`mean seconds that the actions of a trajectory take, all together\n${codingHeader(scenario)}`);
      for (const comparison of compareCoding(scenario)) {
        coding.push(comparison);
        print(codingRow(comparison));
      }
      if (scenario.services) print(`\nmean seconds that a request of a reward model takes\n${serviceHeader}`);
      for (const comparison of compareServices(scenario)) {
        services.push(comparison);
        print(serviceRow(comparison));
      }
      const suites = [...compareSuites(scenario)];
      const figures = paperFigures(coding, services, suites);
      print(`\n${paperTable(figures)}`);
      const behind = behindFixed(coding, services, suites);
      print(
        `\ncompletion time under unit-aware, as a part of that with the best fixed degree of each workload in hindsight (coding steps: of ${scenario.fixedDegrees.join(", ")})`,
      );
      print(behindTable(behind));
      print(`\nsimulated in ${Math.round((performance.now() - startedMs) / 1000)} s with seed ${scenario.seed}`);
      if (flags.json)
        process.stdout.write(`${JSON.stringify({ scenario, figures, behind, coding, services, suites })}\n`);
      if (flags.html === undefined) return;
      const file = flags.html === true ? "actions-simulation.html" : flags.html;
      await writeFile(file, actionComparisonPage(scenario, coding, services, figures));
      print(`${file}: the curves; open it in a browser`);
    });
}

async function readScenario(flags: Flags): Promise<ActionScenario> {
  const values: { readonly pods?: object } = await scenarioValues(actionScenarios, flags.scenario);
  const number = (text: string | undefined): number | undefined => (text === undefined ? undefined : Number(text));
  const pods = {
    podsPerSecond: number(flags.podRate),
    podsPerNode: number(flags.podsPerNode),
    requestCores: number(flags.podRequest),
    limitCores: number(flags.podLimit),
    startSeconds: number(flags.podStart),
  };
  const given = Object.fromEntries(Object.entries(pods).filter(([, value]) => value !== undefined));
  const scenario = validateConfig(ActionScenario, {
    ...values,
    ...(Object.keys(given).length === 0 ? {} : { pods: { ...values.pods, ...given } }),
    ...(flags.seed === undefined ? {} : { seed: Number(flags.seed) }),
  });
  return flags.allNodes ? { ...scenario, simulatedTrajectories: Number.MAX_SAFE_INTEGER } : scenario;
}
