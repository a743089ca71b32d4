/** What a run began to draw from, and that a resume draws from no other. */
import type { WorkflowContext } from "@treadle/runtime";
import { z } from "zod";
import type { ModuleDataConfig } from "./data-config.ts";
import { invalid, shortened } from "./read-rows.ts";
import { keyOf } from "./row-content.ts";

/** A digest of the rows of files, or the module with what it is told. */
export type DrawnFrom = string | Pick<ModuleDataConfig, "kind" | "module" | "settings">;

const Known = z.union([
  z.string(),
  z.object({ kind: z.literal("module"), module: z.string(), settings: z.record(z.string(), z.json()) }),
]);

/** Throws `data.invalid` for other data than the run began with; a run that has no record of it goes on, and has one from now on. */
export async function checkSameData(now: DrawnFrom, once: WorkflowContext<never>["once"]): Promise<void> {
  const began = Known.parse(await once("data", async () => now));
  if (keyOf(began) === keyOf(now)) return;
  const [key, value, before] = differenceOf(now, began);
  const what =
    key === "files"
      ? "the files of 'data' are not those that the run began with"
      : `data.${key} is '${shortened(value)}', and the run began with '${shortened(before)}'`;
  throw invalid(`${what}: its position would be another; restore them, or begin a new run`);
}

function differenceOf(now: DrawnFrom, began: DrawnFrom): readonly [key: string, value: string, before: string] {
  if (typeof now === "string" && typeof began === "string") return ["files", now, began];
  if (typeof now === "string" || typeof began === "string") return ["kind", kindOf(now), kindOf(began)];
  if (now.module !== began.module) return ["module", now.module, began.module];
  return ["settings", JSON.stringify(now.settings), JSON.stringify(began.settings)];
}

const kindOf = (from: DrawnFrom): string => (typeof from === "string" ? "files" : from.kind);
