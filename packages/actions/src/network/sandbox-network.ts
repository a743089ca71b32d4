/** How a configuration says which network sandboxes may have. */
import { z } from "zod";
import type { SandboxNetwork } from "../drivers/sandbox.ts";
import { AllowEntry, AllowList, mostEntries } from "./allow-list.ts";

/**
 * `host`: the machine's own, its loopback included; in Docker, the engine's bridge. `{ proxy: [...] }`: only what is on the list,
 * through a proxy of this process: `pypi.org`, `*.pythonhosted.org:443`, `10.1.0.0/16:8080`.
 */
export const Network = z
  .union(
    [
      z.enum(["none", "host"]),
      z.strictObject({
        proxy: z
          .array(AllowEntry)
          .min(1, "names what may be reached")
          .max(mostEntries, `has at most ${mostEntries} entries; give ranges, or '*.name'`),
      }),
    ],
    {
      error: ({ input }) =>
        typeof input === "object" && input !== null && "proxy" in input
          ? undefined
          : `'${String(input)}' is no network; give none, host, or { proxy: [...] } with what may be reached`,
    },
  )
  .default("none");
export type Network = z.infer<typeof Network>;

export const networkOf = (network: Network): SandboxNetwork | undefined => {
  if (network === "none") return undefined;
  return network === "host" ? "host" : [new AllowList(network.proxy)];
};
