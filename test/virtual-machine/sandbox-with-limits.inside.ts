/** Run in an emulated machine: prints what sandboxes of control groups do there, as JSON. */
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { CgroupDriver } from "@treadle/actions";

const groupOf = (): string => readFileSync("/proc/self/cgroup", "utf8").trim();
const before = groupOf();
const base = `/sys/fs/cgroup${before.slice("0::".length)}`;
const sessions = (): number => readdirSync(base).filter((name) => /^treadle-\d/.test(name)).length;

async function asService() {
  const driver = new CgroupDriver();
  const sandbox = await driver.open({ memoryBytes: 64 * 2 ** 20, maxProcesses: 20 });
  const exec = (script: string, cores?: number[]) =>
    sandbox.exec({ command: ["sh", "-c", script], ...(cores === undefined ? {} : { cores }) });
  const say = async (...asked: Parameters<typeof exec>) => (await exec(...asked)).stdout.toString().trim();
  const said = {
    core: await say("taskset -cp $$ | sed 's/.*: //'", [1]),
    hungry: (await exec("tail /dev/zero")).status,
    after: await say("echo alive"),
    started: Number(await say("for i in $(seq 40); do sleep 9 & done 2>/dev/null; jobs -p | wc -l")),
  };
  await driver.close();
  return { ...said, isolation: driver.isolation, left: sessions() };
}

/** In a group that ends with it, as an agent's worker is: what removes sandboxes must not end, too. */
async function asWorker() {
  const group = join(base, "treadle-worker-1-of-a-test");
  mkdirSync(group);
  writeFileSync(join(group, "cgroup.procs"), String(process.pid));
  process.env["TREADLE_WORKER_GROUP"] = group;
  const driver = new CgroupDriver();
  await driver.open();
  const others = (): string[] =>
    readFileSync(join(group, "cgroup.procs"), "utf8")
      .split("\n")
      .filter((pid) => pid !== "" && pid !== String(process.pid));
  for (let looks = 0; looks < 100 && others().length > 0; looks++) await delay(100);
  const said = { sessionsOfWorker: sessions(), leftInItsGroup: others().length };
  await driver.close();
  return said;
}

const service = await asService();
const now = groupOf();
process.stdout.write(`${JSON.stringify({ before, now, ...service, ...(await asWorker()) })}\n`);
