/** `treadle pool`: devices of this machine that runs share, whichever come and go. */
import { hostname } from "node:os";
import { ask, NatsConfig, type PoolStatus, TreadleError } from "@treadle/contracts";
import { openPool, poolsAt, validateConfig } from "@treadle/runtime/runner";
import { Command } from "commander";
import { printClockLine } from "../view/clock-line.ts";
import { poolTable } from "../view/pool-table.ts";
import { jsonText } from "../view/text.ts";
import { type NatsFlags, natsValues, withControlPlane, withNatsFlags } from "./control-plane.ts";
import { aborted, interruptible } from "./interruptible.ts";
import { type PoolLimitFlags, poolLimits, sharingOptions, withPoolLimits } from "./pool-limits.ts";
import { defaultRunsRoot, findProjectRoot } from "./project.ts";

/** Pools of two machines are two. */
const defaultName =
  hostname()
    .replaceAll(/[^A-Za-z0-9_-]/g, "-")
    .slice(0, 80) || "default";
const timeoutMs = 5000;

type StartFlags = NatsFlags & PoolLimitFlags & { readonly residents: string; readonly runs?: string };

export function poolCommand(): Command {
  const start = withPoolLimits(withNatsFlags(new Command("start")), { beatLimit: "30" })
    .description("shares the devices of this machine among runs that are started with --pool, until SIGTERM")
    .argument("[name]", "how runs call it (default: as the machine is called)")
    .option("--residents <count>", "runs that keep memory on a device together; others wait", "2")
    .option(
      "--runs <folder>",
      "where runs keep their folders, and the pool its history (default: runs/ of the project)",
    )
    .action(startPool);
  const status = withNatsFlags(new Command("status"))
    .description("shows which run has which devices, which run waits for which, and how much slower each is")
    .argument("[name]", "of the pool (default: all that are there)")
    .option("--json", "prints one object")
    .action(showPools);
  return new Command("pool")
    .description("devices of this machine that several runs share, whichever come and go")
    .addCommand(start)
    .addCommand(status);
}

async function startPool(name: string = defaultName, flags: StartFlags): Promise<void> {
  const limits = poolLimits(flags);
  const projectRoot = findProjectRoot();
  const sharing = sharingOptions(flags, projectRoot);
  const runsRoot = flags.runs ?? defaultRunsRoot(projectRoot);
  const nats = validateConfig(NatsConfig, natsValues(flags));
  await interruptible(async ({ stop }) => {
    const pool = await openPool({ nats, name, limits, sharing, onNotice: printClockLine, runsRoot });
    printClockLine(`pool '${name}' is ready for runs at ${[nats.url].flat().join(", ")} (epoch ${pool.epoch})`);
    if (pool.history)
      printClockLine(`which run has which devices, and why: npx treadle trace --pool ${pool.history.name}`);
    try {
      await Promise.race([aborted(stop), pool.failed]);
    } finally {
      await pool.close("it was asked to leave");
    }
  });
  printClockLine("has left: runs keep the devices that they have, and wait for whoever has the pool next");
}

async function showPools(asked: string | undefined, flags: NatsFlags & { readonly json?: boolean }): Promise<void> {
  const found = await withControlPlane(flags, async (plane) => {
    const all = poolsAt(plane).filter(({ name }) => asked === undefined || name === asked);
    return Promise.all(
      all.map(async ({ name, incarnation, info }) => {
        const member = { kind: "pool", name, incarnation, body: info } as const;
        const status: PoolStatus = await ask(plane, "pool", member, "status", {}, { timeoutMs });
        return { name, ...info, ...status };
      }),
    );
  });
  if (asked !== undefined && found.length === 0)
    throw new TreadleError("pool.lost", `no pool '${asked}' is there; start it with 'treadle pool start ${asked}'`);
  process.stdout.write(
    flags.json ? `${jsonText({ pools: found })}\n` : `${found.map(poolTable).join("\n\n") || "no pool is there"}\n`,
  );
}
