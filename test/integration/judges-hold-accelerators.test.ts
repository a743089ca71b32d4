/** Reward models on accelerators: the device lock and their manager of devices never have one at once (RWM1). */
import { chmod, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { delimiter, join } from "node:path";
import { EpisodeGroup } from "@treadle/contracts";
import { launchRewardModels, RewardModelConfig } from "@treadle/workers";
import { afterAll, afterEach, beforeAll, expect, test, vi } from "vitest";
import { processesWith } from "../../packages/actions/test/support/processes.ts";
import { startCluster, type TestCluster, until } from "../support/cluster.ts";
import { ProbeWorker } from "../support/workers/probe.ts";

const alphabet = "ab";
let folder: string;
let world: TestCluster | undefined;

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), "treadle-accelerators-"));
  // A machine with four accelerators of 1000 MiB, whose memory is always free. It is asked once a process.
  const tool = `#!/bin/sh
case "$*" in
*memory.free*) echo "$*" | sed 's/.*--id=//' | tr , '\\n' | sed 's/.*/1000/' ;;
*) for i in 0 1 2 3; do echo "$i, 1000"; done ;;
esac
`;
  await writeFile(join(folder, "nvidia-smi"), tool);
  await chmod(join(folder, "nvidia-smi"), 0o755);
  vi.stubEnv("PATH", `${folder}${delimiter}${process.env.PATH}`);
  // Says which devices it sees, and scores a text by them.
  const service = `import { createServer } from "node:http";
createServer((request, response) => {
  const score = Number(process.env.CUDA_VISIBLE_DEVICES.split(",").join(""));
  response.end(request.url === "/health" ? "{}" : JSON.stringify({ scores: [score] }));
}).listen(Number(process.argv[2]), "127.0.0.1");
`;
  await writeFile(join(folder, "service.mjs"), service);
});
afterEach(async () => {
  await world?.close();
  world = undefined;
});
afterAll(async () => {
  vi.unstubAllEnvs();
  await rm(folder, { recursive: true, force: true });
});

const judgeOf = (own: object = {}) => ({
  ...RewardModelConfig.parse({
    memory: "nvidia",
    devices: 2,
    memoryMiBPerDevice: 800,
    models: { pair: { command: ["node", join(folder, "service.mjs"), "{port}"], memoryMiB: 600, devices: 2 } },
    ...own,
  }),
  alphabet,
});
const services = (): number => processesWith(join(folder, "service.mjs")).length;
const groupOf = (promptId: string): EpisodeGroup =>
  EpisodeGroup.parse({
    promptId,
    episodes: [
      {
        id: promptId,
        promptId,
        tokens: Int32Array.of(0, 1),
        promptLength: 1,
        logprobs: Float32Array.of(0, 0),
        mask: Float32Array.of(0, 1),
        policyVersions: Int32Array.of(0, 0),
        policyVersion: 0,
        temperature: 1,
        finishReason: "stop",
        reward: 0,
      },
    ],
  });

test.each(["spatial", "temporal"] as const)(
  "RWM1 in %s mode a judge's services see the devices that it was given, and are gone while another needs their memory",
  async (mode) => {
    world = await startCluster({ placement: { mode } });
    const { cluster } = world;
    const trainer = cluster.launch(
      ProbeWorker,
      { memoryBytes: 900 * 2 ** 20 },
      { name: "trainer", ranks: { fixed: 1 }, deviceKind: "cuda", devicesPerRank: 2 },
    );
    const judge = launchRewardModels(cluster, judgeOf(), "judge");
    const groups = cluster.channel("groups", EpisodeGroup);
    const scored = cluster.channel("scored", EpisodeGroup);
    const placed = cluster.place().components;
    const devicesOf = (name: string) => placed[name]!.ranks.flatMap(({ devices }) => devices);
    const judged = async (): Promise<number> => {
      await groups.put(groupOf("p"));
      const reports = judge.score(groups.source, scored.sink);
      await trainer.consume(scored.source, 1);
      return (await reports)[0]!.modelReward;
    };
    const visible = Number(
      devicesOf("judge")
        .map((id) => id.replace(/.*cuda:/, ""))
        .join(""),
    );
    expect(devicesOf("judge").every((id) => /(^|\/)cuda:\d$/.test(id))).toBe(true);
    expect(await judged()).toBe(visible);
    expect(services()).toBe(1);
    const isShared = devicesOf("trainer").some((id) => devicesOf("judge").includes(id));
    expect(isShared).toBe(mode === "temporal");
    // 900 of its own and 600 of the services are more than a device has.
    expect(await trainer.useDevices(1, 10)).toEqual([true]);
    expect(services()).toBe(isShared ? 0 : 1);
    expect(await judged()).toBe(visible);
    expect(await trainer.useDevices(1, 10)).toEqual([true]);
    await world.close();
    world = undefined;
    await until(() => services() === 0, "services to end");
  },
  60_000,
);

test("RWM1 of a judge whose model failed, no other model runs on devices that somebody else has then", async () => {
  const uneven = `import { createServer } from "node:http";
createServer((request, response) => {
  if (request.url === "/health") return response.end("{}");
  const isBad = process.argv[3] === "bad";
  setTimeout(() => response.writeHead(isBad ? 500 : 200).end('{"scores": [1]}'), isBad ? 300 : 5000);
}).listen(Number(process.argv[2]), "127.0.0.1");
`;
  await writeFile(join(folder, "uneven.mjs"), uneven);
  const model = (name: string) => ({ command: ["node", join(folder, "uneven.mjs"), "{port}", name], memoryMiB: 300 });
  world = await startCluster({ placement: { mode: "temporal" } });
  const { cluster } = world;
  const options = { name: "trainer", ranks: { fixed: 1 }, deviceKind: "cuda", devicesPerRank: 2 } as const;
  const trainer = cluster.launch(ProbeWorker, { memoryBytes: 900 * 2 ** 20 }, options);
  const models = { bad: { ...model("bad"), devices: 1 }, slow: { ...model("slow"), devices: 1 } };
  const judge = launchRewardModels(cluster, judgeOf({ models }), "judge");
  const groups = cluster.channel("groups", EpisodeGroup);
  const scored = cluster.channel("scored", EpisodeGroup);
  cluster.place();
  await groups.put(groupOf("p"));
  await expect(judge.score(groups.source, scored.sink)).rejects.toThrow(/reward model 'bad' did not answer/);
  expect(await trainer.useDevices(1, 1500)).toEqual([true]);
  expect(processesWith(join(folder, "uneven.mjs"))).toEqual([]);
}, 90_000);

test("a judge that wants more of a device than it has is refused before anything starts", async () => {
  world = await startCluster();
  launchRewardModels(world.cluster, judgeOf({ memoryMiBPerDevice: 2000 }), "judge");
  expect(() => world!.cluster.place()).toThrow(/component 'judge' needs 1.95 GiB on 'cuda:0', which has 1000 MiB/);
  await world.close();
  world = await startCluster({ cluster: { devices: 2 } });
  launchRewardModels(world.cluster, judgeOf(), "judge");
  expect(() => world!.cluster.place()).toThrow(/cuda/);
});
