import { readFile } from "node:fs/promises";
import { z } from "zod";

const Step = z.object({ step: z.int(), items: z.array(z.string()), cut: z.record(z.string(), z.array(z.string())) });
const Steps = z.object({ type: z.literal("steps"), steps: z.array(z.unknown()) });

/** What no step finished of what steps were given, by the cause that the journal has for it. */
export type CutPrompts = {
  readonly cause: string;
  readonly ids: readonly string[];
  /** how many steps cut some for it */
  readonly steps: number;
};

/** Reads a run's journal; lines that are no steps, or torn, cut nothing. */
export async function readCutPrompts(path: string): Promise<CutPrompts[]> {
  const text = await readFile(path, "utf8").catch(() => "");
  const causes = new Map<string, { ids: string[]; steps: number }>();
  for (const line of text.split("\n")) {
    if (!line.includes('"cut"')) continue;
    for (const { cut } of stepsOf(line))
      for (const [cause, ids] of Object.entries(cut)) {
        const known = causes.get(cause) ?? { ids: [], steps: 0 };
        causes.set(cause, { ids: [...known.ids, ...ids], steps: known.steps + 1 });
      }
  }
  return [...causes].map(([cause, found]) => ({ cause, ...found }));
}

function stepsOf(line: string): z.infer<typeof Step>[] {
  let entry: unknown;
  try {
    entry = JSON.parse(line);
  } catch {
    return [];
  }
  const records = Steps.safeParse(entry).data?.steps ?? [entry];
  return records.flatMap((record) => Step.safeParse(record).data ?? []);
}
