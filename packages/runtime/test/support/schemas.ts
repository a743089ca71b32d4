import { z } from "zod";

export const Anything = z.unknown();
export const Counted = z.object({ id: z.string(), count: z.number().default(1) });
export const Placed = Counted.extend({}).meta({ module: import.meta.url, exportName: "Placed" });
export const notASchema = { safeParse: "no" };
