/** Prints what a sandbox of control groups does, as JSON, for who has started it in an emulated machine. */
import { readdirSync, readFileSync } from "node:fs";
import { CgroupDriver } from "@treadle/actions";

const groupOf = (): string => readFileSync("/proc/self/cgroup", "utf8").trim();
const before = groupOf();
const driver = new CgroupDriver();
const sandbox = await driver.open({ memoryBytes: 64 * 2 ** 20, maxProcesses: 20 });
const say = async (script: string, cores?: number[]) =>
  (await sandbox.exec({ command: ["sh", "-c", script], ...(cores === undefined ? {} : { cores }) })).stdout
    .toString()
    .trim();
const core = await say("taskset -cp $$ | sed 's/.*: //'", [1]);
const hungry = (await sandbox.exec({ command: ["tail", "/dev/zero"] })).status;
const after = await say("echo alive");
const started = await say("for i in $(seq 40); do sleep 9 & done 2>/dev/null; jobs -p | wc -l");
const base = `/sys/fs/cgroup${before.slice("0::".length)}`;
await driver.close();
const sessions = readdirSync(base).filter((name) => /^treadle-\d/.test(name)).length;
const { isolation } = driver;
process.stdout.write(
  `${JSON.stringify({ before, now: groupOf(), isolation, core, hungry, after, started: Number(started), sessions })}\n`,
);
