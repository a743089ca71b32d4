/** Servers that a run has started, in the run itself: whoever dies or hangs, prompts go on, and nobody's server is left. */
import { readdirSync, readFileSync, statSync } from "node:fs";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { tinyWeights, writeTinyModel } from "@treadle/engines/testing";
import { segmentFolder } from "@treadle/transport";
import { expect, test } from "vitest";
import { writeDoublePython } from "../../packages/engines/test/support/double-python.ts";
import { until } from "../support/cluster.ts";
import { NodesWorld } from "../support/nodes.ts";
import { projectRoot } from "../support/project.ts";
import { runnersOfEachTest } from "../support/runner-process.ts";

const runners = runnersOfEachTest();
const workflow = join(projectRoot, "test/support/workflows/served");
const sizes = { vocabSize: 16, contextLength: 10 };

/** Processes of servers with this model: those that answer, or all, with what they have started. */
function serversOf(model: string, isOne: (words: readonly string[]) => boolean = () => true): number[] {
  return readdirSync("/proc").flatMap((name) => {
    try {
      if (!/^\d+$/.test(name) || /\) Z /.test(readFileSync(`/proc/${name}/stat`, "utf8"))) return [];
      const words = readFileSync(`/proc/${name}/cmdline`, "utf8").split("\0");
      return words.some((word) => word.endsWith(model)) && isOne(words) ? [Number(name)] : [];
    } catch {
      return [];
    }
  });
}
/** Ranks whose completions have something that their next engine could go on with. */
function ranksThatKeep(): Set<string> {
  const names = readdirSync(segmentFolder).filter((name) => name.includes("completions-served-rollout-"));
  const kept = names.filter((name) => (statSync(join(segmentFolder, name), { throwIfNoEntry: false })?.size ?? 0) > 64);
  return new Set(kept.map((name) => /rollout-(\d+)/.exec(name)![1]!));
}
const answering = (words: readonly string[]) => words.includes("-m");

async function start(name: string, kind = "vllm") {
  const model = join(runners.root, `model-${name}`);
  await writeTinyModel(model, sizes, tinyWeights(sizes, 1));
  const python = await writeDoublePython(runners.root);
  const ledger = join(runners.root, `ledger-${name}`);
  // vLLM counts draws in each request: only completions that begin again have the same tokens.
  const streamMs = kind === "vllm" ? "never" : 0;
  const environment = { TREADLE_DOUBLE: JSON.stringify({ tokenMs: 300 }) };
  const launch = { python, arguments: ["--stream-interval", "1"], environment };
  const engine = { kind, model, callTimeoutMs: 5_000, streamMs, launch };
  const overrides = [`rollout.engine=${JSON.stringify(engine)}`, `ledger=${ledger}`];
  const run = runners.start("new", overrides, workflow);
  const written = async () =>
    (await readFile(ledger, "utf8"))
      .trim()
      .split("\n")
      .map((line) => JSON.parse(line) as { promptId: string; tokens: number[][] })
      .sort((a, b) => a.promptId.localeCompare(b.promptId));
  const step = (index: number) =>
    until(
      () => {
        if (run.threw()) throw new Error(run.threw()?.message);
        return run.events.some((event) => event.type === "step-started" && event.step === index);
      },
      `step ${index}`,
      240_000,
    );
  const restarts = () => run.events.filter((event) => event.type === "worker-restarted").length;
  const logs = () => {
    const [opened] = run.events.filter((event) => event.type === "run-started");
    const folder = join(runners.root, opened!.runId, "logs");
    return [0, 1].map((rank) => readFileSync(join(folder, `served-rollout-${rank}.log`), "utf8")).join("");
  };
  return { ...run, model, written, step, restarts, logs };
}

test.each(["vllm", "sglang"])(
  "servers of %s that are killed or hang, and a worker that is killed, cost no prompt and change no token",
  async (kind) => {
    const calm = await start("calm", kind);
    expect([await calm.exited, calm.threw()]).toEqual([0, undefined]);
    const run = await start("struck", kind);
    await run.step(2);
    expect(serversOf(run.model, answering)).toHaveLength(2);
    if (kind === "sglang")
      await until(() => ranksThatKeep().size === 2, "what completions have so far to be kept", 240_000);
    const [first] = serversOf(run.model, answering);
    process.kill(first!, "SIGSTOP"); // what it was asked is under way now, or soon
    await new Promise((resolve) => setTimeout(resolve, 300));
    process.kill(first!, "SIGKILL");
    await until(() => run.restarts() >= 1, "the worker of a killed server to start again", 240_000);
    await run.step(3);
    const frozen = serversOf(run.model, answering)[0]!;
    process.kill(frozen, "SIGSTOP");
    await until(() => run.restarts() >= 2, "the worker of a frozen server to start again", 240_000);
    expect(serversOf(run.model)).not.toContain(frozen);
    await run.step(4);
    const worker = run.events.findLast(
      (event) => event.type === "worker-restarted" && event.worker.startsWith("served-rollout"),
    );
    process.kill((worker as { pid: number }).pid, "SIGKILL");
    expect([await run.exited, run.threw()]).toEqual([0, undefined]);
    const [expected, written] = [await calm.written(), await run.written()];
    expect(new Set(written.map(({ promptId }) => promptId)).size).toBe(48);
    expect(written).toEqual(expected);
    expect(serversOf(run.model)).toEqual([]);
    expect(serversOf(calm.model)).toEqual([]);
    const logs = run.logs();
    expect(logs).toContain(`a double of ${kind} starts`);
    // What was told is not chosen again, and still no token differs.
    if (kind === "sglang") expect(logs).toMatch(/'[1-9]\d*' completions went on with '[1-9]\d*' tokens/);
  },
  1_200_000,
);

test("S4 a runner that is killed leaves no server, and nothing that a server has started", async () => {
  const run = await start("killed");
  await run.step(2);
  expect(serversOf(run.model, answering)).toHaveLength(2);
  expect(serversOf(run.model)).toHaveLength(4);
  run.child.kill("SIGKILL");
  await run.exited;
  await until(() => serversOf(run.model).length === 0, "the servers to end", 60_000);
}, 600_000);

test("S4 a node agent that is killed leaves no server, and it starts none that it was not told to allow", async () => {
  await using world = await NodesWorld.open();
  const model = join(world.root, "model");
  await writeTinyModel(model, sizes, tinyWeights(sizes, 1));
  const launch = { python: await writeDoublePython(world.root) };
  const engine = `rollout.engine=${JSON.stringify({ kind: "vllm", model, launch })}`;
  const overrides = [engine, `ledger=${join(world.root, "ledger")}`, "cluster.devices=2"];
  const strict = await world.startNode("a", ["--allow-models", model]);
  const refused = world.startRun(overrides, "new", world.runs, "served");
  expect(await refused.exited).toBe(1);
  expect(refused.events.at(-1)).toMatchObject({ message: expect.stringContaining("--allow-interpreter") });
  await strict.kill();

  const node = await world.startNode("b", ["--allow-models", model, "--allow-interpreter", launch.python]);
  const run = world.startRun(overrides, "new", world.runs, "served");
  await run.event("step-started", ({ step }) => step === 2);
  expect(serversOf(model, answering)).toHaveLength(2);
  await node.kill();
  await until(() => serversOf(model).length === 0, "the servers of a killed agent to end", 60_000);
  run.child.kill("SIGKILL");
}, 600_000);
