import { TreadleError } from "@treadle/contracts";
import { Command } from "commander";
import { type Figure, renderFigure, toFigure } from "../view/figures.ts";

export function benchCommand(): Command {
  return new Command("bench")
    .description("measures Treadle on this machine, each figure next to the same work done another way; some minutes")
    .option("--json", "prints one array")
    .option("--only <names>", "comma list of measurements; an unknown name lists them")
    .action(async (flags: { json?: boolean; only?: string }) => {
      const { measurements } = await loadBenchmarks();
      const figures: Figure[] = [];
      for (const name of choose(flags.only, Object.keys(measurements))) {
        if (!flags.json) process.stdout.write(`${name}\n`);
        for await (const row of (await measurements[name]?.()) ?? []) {
          const figure = toFigure(name, row);
          figures.push(figure);
          if (!flags.json) process.stdout.write(`${renderFigure(figure, process.stdout.isTTY === true)}\n`);
        }
      }
      if (flags.json) process.stdout.write(`${JSON.stringify(figures)}\n`);
    });
}

/** A package of the repository that is not published. */
async function loadBenchmarks(): Promise<typeof import("@treadle/bench")> {
  try {
    return await import("@treadle/bench");
  } catch (cause) {
    if ((cause as NodeJS.ErrnoException).code !== "ERR_MODULE_NOT_FOUND") throw cause;
    throw new TreadleError(
      "problem.invalid",
      "package '@treadle/bench' is not installed: benchmarks are part of a checkout; run 'npm run bench' there",
      { cause },
    );
  }
}

function choose(only: string | undefined, allowed: readonly string[]): readonly string[] {
  if (only === undefined) return allowed;
  const names = only.split(",").map((name) => name.trim());
  const unknown = names.find((name) => !allowed.includes(name));
  if (unknown === undefined) return names;
  throw new TreadleError("problem.invalid", `measurement '${unknown}' is not known; allowed are ${allowed.join(", ")}`);
}
