import { benchDecisions, benchOverhead, benchPolicies, benchReplay, benchSandboxes } from "@treadle/actions/bench";
import { TreadleError } from "@treadle/contracts";
import { bench as planner } from "@treadle/planner/bench";
import { measurementNames, bench as runtime } from "@treadle/runtime/bench";
import { bench as simulation } from "@treadle/simulation/bench";
import { bench as trajectories } from "@treadle/trajectories/bench";
import { benchTransport } from "@treadle/transport/bench";
import { Command } from "commander";
import { type Figure, renderFigure } from "../view/figures.ts";

/** What the rows of all packages have in common. */
type Row = {
  readonly name: string;
  readonly value: number | null;
  readonly unit: string;
  readonly baseline: number | null;
  readonly against?: string | null;
  readonly ratioAtMost?: number | undefined;
  readonly ratioAtLeast?: number | undefined;
  readonly notMeasured?: string;
};

type Group = { readonly rows: () => AsyncIterable<Row> | Iterable<Row> | Promise<Row[]>; readonly notMeasured: string };

const groups: Readonly<Record<string, Group>> = {
  transport: {
    rows: () => benchTransport(),
    notMeasured: "other hosts, many peers at once, a receiver whose large heap is being collected",
  },
  ...Object.fromEntries(
    measurementNames.map((name): [string, Group] => [name, { rows: () => runtime({ only: [name] }), notMeasured: "" }]),
  ),
  planner: { rows: planner, notMeasured: "reading the problem; whether its profile is true" },
  "actions-decisions": { rows: benchDecisions, notMeasured: "making what is decided on from what was submitted" },
  actions: {
    rows: async () => [...benchPolicies(), ...(await benchSandboxes())],
    notMeasured: "wrong estimates of durations; memory, several nodes and the time of decisions where it is simulated",
  },
  "actions-overhead": {
    rows: async () => (await benchOverhead()).map((row) => ({ ...row, against: "the 100 ms of the action" })),
    notMeasured:
      "several actions at once; a queue; TREADLE_DOCKER_IMAGE names the image without which docker is left out",
  },
  "actions-replay": {
    rows: async () =>
      (await benchReplay()).map((row) => ({
        ...row,
        against: row.baseline === null ? null : "a core reserved for each trajectory while it lives",
      })),
    notMeasured: "a model: thinking is waiting; what else runs on these cores meets all ways in turn",
  },
  simulation: { rows: simulation, notMeasured: "planning; what the figures mean, see test/fidelity" },
  trajectories: { rows: trajectories, notMeasured: "sorting the lengths; errors of their prediction" },
};

export function benchCommand(): Command {
  return new Command("bench")
    .description("measures Treadle on this machine, each figure next to the same work done another way; some minutes")
    .option("--json", "prints one array")
    .option("--only <names>", `comma list of ${Object.keys(groups).join(", ")}`)
    .action(async (flags: { json?: boolean; only?: string }) => {
      const figures: Figure[] = [];
      for (const name of choose(flags.only)) {
        const group = groups[name] as Group;
        if (!flags.json) process.stdout.write(`${name}\n`);
        for await (const row of await group.rows()) {
          const figure = toFigure(name, row, group.notMeasured);
          figures.push(figure);
          if (!flags.json) process.stdout.write(`${renderFigure(figure, process.stdout.isTTY === true)}\n`);
        }
      }
      if (flags.json) process.stdout.write(`${JSON.stringify(figures)}\n`);
    });
}

function choose(only: string | undefined): string[] {
  if (only === undefined) return Object.keys(groups);
  const names = only.split(",").map((name) => name.trim());
  const unknown = names.find((name) => !Object.hasOwn(groups, name));
  if (unknown === undefined) return names;
  throw new TreadleError(
    "problem.invalid",
    `measurement '${unknown}' is not known; allowed are ${Object.keys(groups).join(", ")}`,
  );
}

function toFigure(group: string, row: Row, notMeasured: string): Figure {
  const { name, value, unit, baseline, against = null, ratioAtMost, ratioAtLeast } = row;
  const ratio = value === null || baseline === null ? null : value / baseline;
  const target =
    ratioAtMost !== undefined
      ? `at most ${ratioAtMost}×`
      : ratioAtLeast !== undefined
        ? `at least ${ratioAtLeast}×`
        : null;
  const isMet =
    ratio === null || target === null ? null : ratio <= (ratioAtMost ?? Infinity) && ratio >= (ratioAtLeast ?? 0);
  return {
    group,
    name,
    value,
    unit,
    baseline,
    against,
    ratio,
    target,
    isMet,
    notMeasured: row.notMeasured ?? notMeasured,
  };
}
