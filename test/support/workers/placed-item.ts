import { z } from "zod";

/** Not of the workflow's module: it says itself where it is. */
export const PlacedItem = z
  .object({ id: z.number(), cost: z.number().default(1) })
  .meta({ module: import.meta.url, exportName: "PlacedItem" });
