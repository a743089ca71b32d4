/** `treadle actions profile`: how a command gains from cores, measured and kept for whoever submits it. */
import { execFileSync } from "node:child_process";
import { mkdir, writeFile } from "node:fs/promises";
import { dirname, join, resolve } from "node:path";
import {
  choiceIn,
  type DriverChoice,
  describeHost,
  type ElasticityProfile,
  openDriver,
  type ProfiledRun,
  parallelTemplate,
  profileElasticity,
} from "@treadle/actions";
import { ActionServiceConfig } from "@treadle/actions/serve";
import { TreadleError } from "@treadle/contracts";
import { readConfigFile, validateConfig } from "@treadle/runtime/runner";
import { Command, Option } from "commander";
import { z } from "zod";
import { formatPercent, formatSeconds, significant } from "../view/text.ts";
import { findProjectRoot } from "./project.ts";

const Values = z.strictObject({
  units: z.array(z.coerce.number().int().positive()).min(1),
  samples: z.coerce.number().int().positive().max(100),
  tries: z.coerce.number().int().positive().max(1000),
  tolerance: z.coerce.number().min(0).max(1),
  timeoutSeconds: z.coerce.number().positive(),
  kind: z.string().regex(/^[A-Za-z0-9][A-Za-z0-9_.-]*$/, "is made of letters, digits, '_', '.' and '-'"),
});

type Flags = {
  readonly kind?: string;
  readonly units?: string;
  readonly samples: string;
  readonly tries: string;
  readonly tolerance: string;
  readonly timeout: string;
  readonly folder?: string;
  readonly config?: string;
  readonly driver?: DriverChoice["drivers"][number];
  readonly image?: string;
  readonly out?: string;
  readonly json?: boolean;
};

const largestFolderBytes = 2 ** 28;

export function profileActionCommand(): Command {
  return new Command("profile")
    .description("measures how a command gains from cores, in a sandbox, and keeps it as JSON")
    .argument("<command...>", "after '--'; pytest, vitest and node --test are made parallel, others by {parallel}")
    .option("--kind <name>", "of the action (default: the program's name)")
    .option("--units <list>", "core counts, as 1,2,4 (default: doubling up to this machine's)")
    .option("--samples <number>", "runs of each that count", "3")
    .option(
      "--tries <number>",
      "runs of each at most, since those during which others use the cores do not count",
      "10",
    )
    .option("--tolerance <share>", "of the cores' time that others may take", "0.1")
    .option("--timeout <seconds>", "of a run", "600")
    .option("--folder <folder>", "its files are in the sandbox, where the command runs")
    .option("--config <file>", "of 'actions serve': measures in sandboxes as that service makes them")
    .addOption(
      new Option("--driver <name>", "what runs it (default: the file's, or cgroup)").choices([
        "cgroup",
        "docker",
        "process",
      ]),
    )
    .option("--image <name>", "of the driver 'docker' (default: the file's docker.image)")
    .option("--out <file>", "default: .treadle/actions/<kind>.json of the project")
    .option("--json", "prints the profile")
    .action(async (words: string[], flags: Flags) => {
      const cores = describeHost().numa.flat();
      const values = validateConfig(Values, {
        units: (flags.units ?? doublings(cores.length).join()).split(","),
        samples: flags.samples,
        tries: flags.tries,
        tolerance: flags.tolerance,
        timeoutSeconds: flags.timeout,
        kind: flags.kind ?? words[0]?.slice(words[0].lastIndexOf("/") + 1),
      });
      const units = [...new Set(values.units)].sort((a, b) => a - b);
      if (units.at(-1)! > cores.length)
        throw new TreadleError(
          "config.invalid",
          `--units: '${units.at(-1)}' is more than this machine's ${cores.length} cores`,
        );
      const template = parallelTemplate(words);
      if (template === undefined)
        throw new TreadleError(
          "config.invalid",
          `'${words.join(" ")}' has no place for the number of cores; write {parallel} where it goes, as in 'make -j{parallel} test'`,
        );
      const print = (text: string) => void (flags.json || process.stdout.write(`${text}\n`));
      print(`${template.join(" ")} on ${units.join(", ")} cores of ${cores.length}`);
      const ended = new AbortController();
      for (const signal of ["SIGTERM", "SIGINT"] as const)
        process.once(signal, () => ended.abort(new TreadleError("action.cancelled", "the measurement was stopped")));
      const files = flags.folder === undefined ? undefined : packed(flags.folder);
      const driver = await openDriver(await driverOf(flags));
      try {
        const profile = await profileElasticity({
          kind: values.kind,
          template,
          driver,
          cores,
          units,
          samples: values.samples,
          maxRuns: Math.max(values.samples, values.tries),
          tolerance: values.tolerance,
          timeoutMs: values.timeoutSeconds * 1000,
          signal: ended.signal,
          onRun: (run) => print(`  ${describeRun(run)}`),
          ...(files === undefined
            ? {}
            : {
                prepare: async (sandbox) => {
                  const { exitCode, stderr } = await sandbox.exec({ command: ["tar", "-xf", "-"], stdin: files });
                  if (exitCode !== 0)
                    throw new TreadleError("sandbox.failed", `the files could not be unpacked: ${stderr}`);
                },
              }),
        });
        const file = resolve(flags.out ?? join(findProjectRoot(), ".treadle/actions", `${values.kind}.json`));
        await mkdir(dirname(file), { recursive: true });
        await writeFile(file, `${JSON.stringify(profile, null, 2)}\n`);
        if (flags.json) process.stdout.write(`${JSON.stringify(profile)}\n`);
        for (const line of describeProfile(profile)) print(line);
        print(`${file}: duration and elasticity, as an action's fields`);
      } finally {
        await driver.close();
      }
    });
}

async function driverOf({ config, driver, image }: Flags): Promise<DriverChoice> {
  const { drivers, docker, cgroup } = validateConfig(
    ActionServiceConfig,
    config === undefined ? {} : await readConfigFile(config),
  );
  return choiceIn(config === undefined ? process.cwd() : dirname(resolve(config)), {
    drivers: driver === undefined ? drivers : [driver],
    docker: image === undefined ? docker : { ...docker, image },
    cgroup,
  });
}

/** 1, 2, 4, … and the number of cores itself. */
function doublings(cores: number): number[] {
  const units: number[] = [];
  for (let count = 1; count < cores; count *= 2) units.push(count);
  return [...units, cores];
}

function packed(folder: string): Buffer {
  try {
    return execFileSync("tar", ["-C", folder, "-cf", "-", "."], {
      maxBuffer: largestFolderBytes,
      stdio: ["ignore", "pipe", "pipe"],
    });
  } catch (cause) {
    throw new TreadleError(
      "config.invalid",
      `--folder '${folder}' cannot be packed (${(cause as Error).message.trim()}); give a readable folder of at most ${largestFolderBytes} bytes`,
      { cause },
    );
  }
}

function describeRun({ units, seconds, othersShare, accepted }: ProfiledRun): string {
  const others = othersShare > 0 ? `, others took ${formatPercent(othersShare, 0)} of the cores` : "";
  return `${units} cores: ${formatSeconds(seconds)}${others}${accepted ? "" : " (does not count)"}`;
}

function describeProfile({ samples, duration, elasticity, fit, convex, wasteful }: ElasticityProfile): string[] {
  return [
    "",
    "cores  seconds    E(m)   times as fast",
    ...samples.map(({ units, seconds, contended }, i) => {
      const efficiency = elasticity.points[i]!.efficiency;
      return `${String(units).padEnd(7)}${formatSeconds(seconds).padEnd(11)}${efficiency.toFixed(2).padEnd(7)}${significant(duration / seconds)}${contended ? "   (every run was contended: an upper bound of the seconds)" : ""}`;
    }),
    `serial share ${formatPercent(fit.serialShare)} by Amdahl's law, at most ${formatPercent(fit.relativeError)} off; ${convex ? "convex" : "not convex"}${wasteful.length > 0 ? `; never worth taking: ${wasteful.join(", ")}` : ""}`,
  ];
}
