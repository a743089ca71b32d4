import { spawn } from "node:child_process";
import { once } from "node:events";
import {
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  truncateSync,
  writeFileSync,
} from "node:fs";
import { rm } from "node:fs/promises";
import { availableParallelism, tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, describe, expect, test } from "vitest";
import { ActionHistory, ActionSpec } from "../src/index.ts";
import { ActionServiceConfig, openActionService, StatisticsClient } from "../src/serve.ts";
import { LearnedFile } from "../src/service/learned-file.ts";
import { connectActions } from "./support/client.ts";
import { eventually } from "./support/processes.ts";

const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup();
});

function folderOf(): string {
  const folder = mkdtempSync(join(tmpdir(), "treadle-learned-"));
  cleanups.push(() => rmSync(folder, { recursive: true }));
  return folder;
}

const spec = ActionSpec.parse({ kind: "suite", cost: { cpu: 1 } });
const unused = (): never => {
  throw new Error("nothing is told");
};
const fileIn = (folder: string): string => join(folder, "state/learned.json");

async function open(folder: string, tell: (line: string) => void = unused, everyMs?: number) {
  const file = await LearnedFile.open(join(folder, "state"), tell, everyMs);
  cleanups.push(() => file.close());
  const history = new ActionHistory(undefined, file.saved);
  return { file, history };
}

describe("the file of what was learned", () => {
  test("is written now and then, and at the end; is its owner's alone, and read at the start", async () => {
    const folder = folderOf();
    const { file, history } = await open(folder, unused, 5);
    file.keep(history);
    history.observe(spec, 1, 3);
    expect(await eventually(() => readdirSync(join(folder, "state")).includes("learned.json"))).toBe(true);
    history.observe(spec, 1, 5);
    await file.close();
    history.observe(spec, 1, 500);
    expect(readdirSync(join(folder, "state"))).toEqual(["learned.json"]);
    expect(statSync(fileIn(folder)).mode & 0o777).toBe(0o600);
    const told: string[] = [];
    const next = await open(folder, (line) => told.push(line));
    await next.file.close();
    expect(told).toEqual([`what was learned before is known: durations of 1 kind, 0 curves, of '${fileIn(folder)}'`]);
    expect(next.history.expect(spec).oneUnitSeconds).toBe(4);
  });

  test.each([
    [
      "is no JSON",
      "{",
      /^'.*learned\.json' is ignored, since it is no JSON: .*; it is now '.*learned\.json\.ignored'$/,
    ],
    ["is of another version", '{"version":2}', /it is of version '2', and '1' is read here; it is now/],
    [
      "says what none can",
      '{"version":1,"durations":[{"mean":-1}],"curves":[]}',
      /durations\.0\.tenant: .*; it is now/,
    ],
    ["is empty", "", /is no JSON/],
  ])("one that %s is said, set aside and ignored", async (_, text, message) => {
    const folder = folderOf();
    const first = await open(folder);
    first.file.keep(first.history);
    first.history.observe(spec, 1, 3);
    await first.file.close();
    writeFileSync(fileIn(folder), text);
    const told: string[] = [];
    const { file, history } = await open(folder, (line) => told.push(line));
    expect(told).toEqual([expect.stringMatching(message)]);
    expect(history.expect(spec).oneUnitSeconds).toBeUndefined();
    file.keep(history);
    history.observe(spec, 1, 7);
    await file.close();
    expect(readFileSync(`${fileIn(folder)}.ignored`, "utf8")).toBe(text);
    expect((await open(folder, () => {})).history.expect(spec).oneUnitSeconds).toBe(7);
  });

  test("one that cannot be written is said once, until it can again", async () => {
    const folder = folderOf();
    const told: string[] = [];
    const { file, history } = await open(folder, (line) => told.push(line), 5);
    file.keep(history);
    rmSync(join(folder, "state"), { recursive: true });
    writeFileSync(join(folder, "state"), "a file");
    let seconds = 1;
    const teach = setInterval(() => history.observe(spec, 1, seconds++), 5);
    cleanups.push(() => clearInterval(teach));
    expect(await eventually(() => told.length > 0)).toBe(true);
    const before = seconds;
    expect(await eventually(() => seconds > before + 20)).toBe(true);
    clearInterval(teach);
    await file.close();
    expect(told).toEqual([expect.stringMatching(/^what was learned cannot be kept in '.*learned\.json': EEXIST/)]);
  });

  test("one that is too large to be read is said, and set aside unread", async () => {
    const folder = folderOf();
    mkdirSync(join(folder, "state"));
    writeFileSync(fileIn(folder), "");
    truncateSync(fileIn(folder), 600e6);
    const told: string[] = [];
    await (await open(folder, (line) => told.push(line))).file.close();
    expect(told).toEqual([
      expect.stringMatching(/is ignored, since it has '600000000' bytes, and at most '\d+' are read; it is now/),
    ]);
    expect(readdirSync(join(folder, "state"))).toEqual(["learned.json.ignored"]);
  });

  test("nothing is left of a write that failed, nor at the next start of one that a crash cut", async () => {
    const folder = folderOf();
    const told: string[] = [];
    const { file, history } = await open(folder, (line) => told.push(line));
    file.keep(history);
    history.observe(spec, 1, 3);
    mkdirSync(join(fileIn(folder), "full"), { recursive: true });
    await file.close();
    expect(told).toEqual([expect.stringMatching(/cannot be kept/)]);
    expect(readdirSync(join(folder, "state"))).toEqual(["learned.json"]);
    rmSync(fileIn(folder), { recursive: true });
    writeFileSync(`${fileIn(folder)}.1.partial`, "{");
    writeFileSync(join(folder, "state/other"), "not ours");
    await (await open(folder)).file.close();
    expect(readdirSync(join(folder, "state"))).toEqual(["other"]);
  });

  test("LF1: one process at a time has the folder; one that was killed keeps it from nobody", async () => {
    const folder = folderOf();
    const source = `
      const { LearnedFile } = await import(${JSON.stringify(new URL("../src/service/learned-file.ts", import.meta.url).href)});
      await LearnedFile.open(${JSON.stringify(join(folder, "state"))}, () => {});
      console.log("has it");
      setInterval(() => {}, 1000);`;
    const node = ["--conditions=source", "--import", "tsx", "--input-type=module", "-e", source];
    const holder = spawn(process.execPath, node, { stdio: ["ignore", "pipe", "inherit"] });
    cleanups.push(() => holder.kill("SIGKILL"));
    await once(holder.stdout, "data");
    await expect(open(folder)).rejects.toMatchObject({
      code: "config.invalid",
      message: `state: '${join(folder, "state")}' is in use: process '${holder.pid}' has it; end that service first, or give each a folder of its own`,
    });
    holder.kill("SIGKILL");
    await once(holder, "exit");
    const { file, history } = await open(folder);
    file.keep(history);
    history.observe(spec, 1, 3);
    await file.close();
    expect(readdirSync(join(folder, "state"))).toEqual(["learned.json"]);
  }, 60_000);

  test("LF1: one that lost the folder to another process says so, and overwrites nothing", async () => {
    const folder = folderOf();
    const told: string[] = [];
    const { file, history } = await open(folder, (line) => told.push(line));
    file.keep(history);
    history.observe(spec, 1, 3);
    const holder = join(folder, "state/learned.lock.holder");
    writeFileSync(holder, JSON.stringify({ ...JSON.parse(readFileSync(holder, "utf8")), token: "another's" }));
    await rm(join(folder, "state/learned.lock"), { recursive: true }); // the other one has ended
    await file.close();
    expect(told).toEqual([
      expect.stringMatching(
        /^what is learned is kept no longer: '.*learned\.json' is not this process's any more: .* another process/,
      ),
    ]);
    expect(readdirSync(join(folder, "state"))).toEqual(["learned.lock.holder"]);
  }, 30_000);

  test("a service that does not start leaves its folder to the next", async () => {
    const folder = folderOf();
    const config = ActionServiceConfig.parse({
      listen: "127.0.0.1:0",
      drivers: ["process"],
      state: "state",
      profiles: ["none.json"],
    });
    await expect(openActionService(config, folder)).rejects.toMatchObject({
      message: expect.stringMatching(/none\.json/),
    });
    expect(readdirSync(join(folder, "state"))).toEqual([]);
  });

  test("a folder that cannot be is refused at the start", async () => {
    const folder = folderOf();
    writeFileSync(join(folder, "state"), "a file");
    await expect(open(folder)).rejects.toMatchObject({
      code: "config.invalid",
      message: expect.stringMatching(/^state: '.*state' cannot be used: EEXIST.*; name a folder/),
    });
  });
});

// Commands are bound to cores 0 and 1.
test.skipIf(availableParallelism() < 2)(
  "HE3: a service that starts again knows what its last one measured",
  async () => {
    const folder = folderOf();
    const config = ActionServiceConfig.parse({
      ...{ listen: "127.0.0.1:0", drivers: ["process"], state: "state" },
      resources: { cpu: { type: "cpu", numa: [[0, 1]] } },
    });
    const serve = async () => {
      const told: string[] = [];
      const service = await openActionService(config, folder, (line) => told.push(line));
      const client = connectActions(service.address);
      const statistics = new StatisticsClient({ address: service.address });
      const close = async () => {
        client.close();
        statistics.close();
        await service.close();
      };
      cleanups.push(close);
      const { trajectory } = await client.call("OpenTrajectory", {});
      const run = async () => {
        const action = client.submit({
          ...{ trajectory, kind: "flat", command: ["sh", "-c", "sleep 0.1; : {parallel}"] },
          ...{ cost: { cpu: { range: { min: 1, max: 2 } } }, key: "cpu", elasticity: { amdahl: 0 } },
        });
        expect(await action.ended).toBeUndefined();
        return action.events.find(({ started }) => started)!.started!.allocation["cpu"];
      };
      const sourceOf = async () => (await statistics.read()).kinds["flat"]?.curve?.source;
      return { run, sourceOf, told, close };
    };
    const first = await serve();
    expect(first.told).toEqual([]);
    for (let i = 0; i < 200 && (await first.sourceOf()) !== "measured"; i++) await first.run();
    expect(await first.sourceOf()).toBe("measured");
    await first.close();
    const second = await serve();
    expect(second.told).toEqual([expect.stringMatching(/durations of 1 kind, 1 curve, of/)]);
    await second.run();
    expect(await second.sourceOf()).toBe("measured");
  },
);
