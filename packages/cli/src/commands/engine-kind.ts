import { z } from "zod";

const Choice = z.looseObject({ engine: z.looseObject({ kind: z.string() }) });

/** What runs the models of a run, by its configuration, where the shipped workflows say so. */
export function engineKindOf(config: Readonly<Record<string, unknown>>): string {
  if (config["emulated"] !== undefined) return "emulated";
  return Choice.safeParse(config).data?.engine.kind ?? "embedded";
}
