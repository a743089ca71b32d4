import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, expect, test } from "vitest";
import { connectActions } from "./support/client.ts";
import { startService } from "./support/service-process.ts";

const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup();
});

const configuration = `listen: 127.0.0.1:0
drivers: [cgroup, process]
resources: { cpu: { type: cpu }, judge: { type: quota, concurrency: 3 } }
limits: { trajectoryMemoryMib: 16 }
tenants: { long: {}, short: {} }
`;
const seconds = { long: 0.3, short: 0.03 };
type Tenant = keyof typeof seconds;
const tenants = Object.keys(seconds) as Tenant[];
/** of each tenant, more than there ever are units */
const atOnce = 6;
/** Shares differ by a few of the longest actions at any instant, however long both contend: 5 % of this are four of them. */
const contended = 48;

async function serve() {
  const folder = await mkdtemp(join(tmpdir(), "treadle-fairness-"));
  cleanups.push(() => rm(folder, { recursive: true }));
  const config = join(folder, "config.yaml");
  await writeFile(config, configuration);
  const service = await startService(config);
  cleanups.push(service.kill);
  const client = connectActions(service.address);
  cleanups.push(() => client.close());
  const charged = async (resource: string): Promise<Record<Tenant, number>> => {
    const { charged: all } = (await client.call("GetStatistics", {})) as {
      charged: Record<string, { unit_seconds: Record<string, number> }>;
    };
    const of = (tenant: Tenant): number => all[tenant]?.unit_seconds[resource] ?? 0;
    return { long: of("long"), short: of("short") };
  };
  return { ...client, charged };
}

/** Both tenants always have more waiting than fits. What each was charged of the resource meanwhile, in unit-seconds. */
async function contend(
  { charged }: Awaited<ReturnType<typeof serve>>,
  resource: string,
  unitSeconds: number,
  act: (tenant: Tenant, lane: number) => Promise<unknown>,
): Promise<Record<Tenant, number>> {
  let isOver = false;
  const follow = async (tenant: Tenant, lane: number): Promise<void> => {
    while (!isOver) await act(tenant, lane);
  };
  const lanes = tenants.flatMap((tenant) => Array.from({ length: atOnce }, (_, lane) => follow(tenant, lane)));
  const total = ({ long, short }: Record<Tenant, number>): number => long + short;
  const since = async (begun: Record<Tenant, number>, sum: number): Promise<Record<Tenant, number>> => {
    for (;;) {
      const now = await charged(resource);
      const spent = { long: now.long - begun.long, short: now.short - begun.short };
      if (total(spent) >= sum) return spent;
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
  };
  // The first actions open sandboxes, and nothing is known of how long they take.
  await since({ long: 0, short: 0 }, 4);
  const spent = await since(await charged(resource), unitSeconds);
  isOver = true;
  await Promise.all(lanes);
  return spent;
}

const apart = ({ long, short }: Record<Tenant, number>): number => Math.abs(long - short) / Math.max(long, short);

test("two equal tenants are charged the same core-seconds within 5 %, one with commands ten times as long", async () => {
  const service = await serve();
  for (const tenant of tenants)
    for (let lane = 0; lane < atOnce; lane++)
      await service.call("OpenTrajectory", { trajectory: `${tenant}${lane}`, tenant });
  const spent = await contend(service, "cpu", contended, async (tenant, lane) => {
    const run = service.submit({ trajectory: `${tenant}${lane}`, command: ["sleep", String(seconds[tenant])] });
    const error = await run.ended;
    if (error !== undefined) throw error;
  });
  expect(apart(spent), JSON.stringify(spent)).toBeLessThan(0.05);
}, 300_000);

test("and the same of a quota that their clients hold for calls of their own", async () => {
  const service = await serve();
  let made = 0;
  const spent = await contend(service, "judge", contended, async (tenant) => {
    const lease = `${made++}`;
    const held = service.acquire({ tenant, lease, cost: { judge: { fixed: 1 } } });
    await held.grant;
    await new Promise((resolve) => setTimeout(resolve, seconds[tenant] * 1000));
    await service.call("Release", { lease });
  });
  expect(apart(spent), JSON.stringify(spent)).toBeLessThan(0.05);
}, 300_000);
