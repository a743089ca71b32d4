/**
 * The configuration that a worker fetches from whoever commands it, before an agent that allows nothing: no program, variable
 * or file of its choosing is started, set or imported, and no server of its choosing is told what the agent's user knows.
 */
import { existsSync } from "node:fs";
import { chmod, mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type ExitReport, type Member, runProtocol } from "@treadle/contracts";
import { tinyWeights, writeTinyModel } from "@treadle/engines/testing";
import { createPeer, localControlPlanes, openEndpoint } from "@treadle/transport";
import { afterAll, beforeAll, describe, expect, test, vi } from "vitest";
import { ProjectCode } from "../../packages/runtime/src/node/code-hash.ts";
import { startNodeService } from "../support/node-service.ts";
import { projectRoot } from "../support/project.ts";
import { spawnCommand } from "../support/spawn-command.ts";

const token = "a token of enough characters";
const sizes = { vocabSize: 100, contextLength: 16, layers: 1, width: 8, heads: 1 };
const rollout = { model: sizes, alphabet: "abc", groupSize: 1, maxTokens: 1 };
type Attack = readonly [what: string, module: string, exportName: string, config: (evil: string) => object];
const attacks: readonly Attack[] = [
  [
    "the interpreter of a reward",
    "rollout/rollout-worker.ts",
    "RolloutWorker",
    (evil) => ({ ...rollout, reward: { name: "python", function: "x.py:f", python: evil } }),
  ],
  [
    "the file of a reward's function",
    "rollout/rollout-worker.ts",
    "RolloutWorker",
    (evil) => ({ ...rollout, reward: { name: "python", function: `${evil}.py:f` } }),
  ],
  [
    "the interpreter of an engine",
    "rollout/rollout-worker.ts",
    "RolloutWorker",
    (evil) => ({ ...rollout, reward: { name: "exact" }, engine: { kind: "torch", python: evil } }),
  ],
  [
    "the folder of an engine's weights",
    "rollout/rollout-worker.ts",
    "RolloutWorker",
    (evil) => ({ ...rollout, reward: { name: "exact" }, engine: { kind: "torch", weightsFolder: evil } }),
  ],
  [
    "the folder of emulated collectives",
    "actor/actor-worker.ts",
    "ActorWorker",
    (folder) => ({
      ...{ model: sizes, algorithm: { name: "grpo" }, learningRate: 1 },
      emulated: { collectives: { folder } },
    }),
  ],
  [
    "the program of a reward model",
    "tool/reward-model-worker.ts",
    "RewardModelWorker",
    (evil) => ({
      models: { judge: { command: [evil], memoryMiB: 1, weight: 1, devices: 1, restoreSeconds: 1 } },
      ...{ devices: 1, memoryMiBPerDevice: 8, memory: "main", path: "/score", timeoutMs: 1000, alphabet: "abc" },
    }),
  ],
  ["commands without isolation", "tool/tool-worker.ts", "ToolWorker", (evil) => tool(evil, { drivers: ["process"] })],
  ["commands with a network", "tool/tool-worker.ts", "ToolWorker", (evil) => tool(evil, { network: "host" })],
  [
    "commands in another's containers",
    "tool/tool-worker.ts",
    "ToolWorker",
    (evil) => tool(evil, { drivers: ["docker"], docker: { image: "any", socket: "/run/another.sock" } }),
  ],
];

function tool(program: string, over: object): object {
  const actions = {
    ...{ scheduling: "action", policy: "unit-aware", cores: "all", sandboxes: "slot", timeoutMs: 2000 },
    ...{ maxOutputBytes: 4096, memoryMiB: 64, maxProcesses: 32, network: "none", drivers: ["cgroup"] },
  };
  return { name: "tool", program, cores: 1, actions: { ...actions, ...over } };
}

type Sent = { readonly failure: ExitReport["failure"]; readonly mark: string };

/** What becomes of a worker with this configuration under an agent that allows nothing; `mark`: where `evil` would leave a trace. */
async function startUnderAgent(
  module: string,
  exportName: string,
  config: (evil: string) => object,
  judge: (sent: Sent) => void,
): Promise<void> {
  const root = await mkdtemp(join(tmpdir(), "treadle-h-"));
  const mark = join(root, "was-run");
  const evil = join(root, "evil.sh");
  await writeFile(evil, `#!/bin/sh\nid > ${mark}\n`);
  await writeFile(`${evil}.py`, `open(${JSON.stringify(mark)}, "w").close()\ndef f(**_): return 0\n`);
  await writeFile(
    `${evil}.mjs`,
    `import { writeFileSync } from "node:fs"; writeFileSync(${JSON.stringify(mark)}, "");\n`,
  );
  await chmod(evil, 0o755);
  const planes = localControlPlanes();
  const plane = planes.connect();
  const service = await startNodeService(planes.connect(), projectRoot, 60_000); // allows nothing
  let exited = (_: ExitReport): void => {};
  const ended = new Promise<ExitReport>((resolve) => {
    exited = resolve;
  });
  await plane.announce("run", "run-1", {}, (_method, body) => exited((body as { report: ExitReport }).report));
  const runner = await openEndpoint({ name: "runner", runId: "run-1", token, segments: false, tcp: { port: 0 } });
  runner.onLink((link) => {
    const peer = createPeer(link, runProtocol);
    peer.handle("configuration", async () => ({ config: config(evil) }));
    peer.handle("reachable", async () => {});
    peer.handle("ready", async () => {
      throw new Error("the worker is set up: nothing was refused");
    });
    peer.handle("telemetry", () => {});
  });
  const { hash } = await new ProjectCode(projectRoot).current();
  const command = spawnCommand(projectRoot, hash, {
    over: { modulePath: `packages/workers/src/${module}` },
    boot: { exportName, runnerAddresses: [...runner.addresses] },
  });
  try {
    await plane.command(plane.members("node")[0] as Member, "spawn", command, { timeoutMs: 120_000 });
    const { failure } = await ended;
    judge({ failure, mark });
  } finally {
    await runner.close();
    await service.close("over");
    await plane.close();
    await rm(root, { recursive: true, force: true });
  }
}

test.each(attacks)("PGR1: %s", (_, module, exportName, config) =>
  startUnderAgent(module, exportName, config, ({ failure, mark }) => {
    expect(failure?.message).toMatch(
      /'a' (does not start a worker whose configuration|does not allow)|'\/bin\/sh'|may not set '[a-z.]+' on node 'a'/,
    );
    expect(["node.forbidden", "sandbox.unavailable"]).toContain(failure?.cause?.code);
    expect(existsSync(mark)).toBe(false);
  }),
);

test.each([
  ["an engine", (module: string) => ({ ...rollout, engine: { kind: "module", module } })],
  ["a tokenizer", (module: string) => ({ ...rollout, alphabet: undefined, tokenizer: { kind: "module", module } })],
])("PGR1: the module of %s", (_, config) =>
  startUnderAgent(
    "rollout/rollout-worker.ts",
    "RolloutWorker",
    (evil) => ({ ...config(`${evil}.mjs`), reward: { name: "exact" } }),
    ({ failure, mark }) => {
      expect(failure?.message).toContain("is outside of the project root");
      expect(existsSync(mark)).toBe(false);
    },
  ),
);

describe("PGR1: an HTTP server that the configuration chooses", () => {
  const secret = "what the agent's user alone may know";
  const heard: string[] = [];
  const server = createServer((request, response) => {
    let text = `${request.method} ${request.url} ${JSON.stringify(request.headers)}`;
    request.on("data", (bytes) => {
      text += bytes;
    });
    request.on("end", () => {
      heard.push(text);
      response.writeHead(404).end();
    });
  });
  let model: string;
  let url: string;
  beforeAll(async () => {
    // Below the project, as without '--allow-models'; where git and the tools look at nothing.
    const cache = join(projectRoot, ".cache");
    await mkdir(cache, { recursive: true });
    model = await mkdtemp(join(cache, "tiny-"));
    const options = { ...sizes, vocabSize: 8 };
    await writeTinyModel(model, options, tinyWeights(options, 1));
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
    vi.stubEnv("HOSTILE_TEST_KEY", secret);
    vi.stubEnv("TREADLE_NATS_PASSWORD", secret);
  });
  afterAll(async () => {
    vi.unstubAllEnvs();
    await new Promise((resolve) => server.close(resolve));
    await rm(model, { recursive: true, force: true });
  });
  const ask = (engine: object, judge: (sent: Sent) => void) =>
    startUnderAgent(
      "rollout/rollout-worker.ts",
      "RolloutWorker",
      () => ({
        ...{ ...rollout, model: { ...sizes, vocabSize: 8 }, reward: { name: "exact" } },
        engine: { kind: "vllm", url, model, ...engine },
      }),
      judge,
    );

  test(
    "is asked, and told nothing that the agent's user has",
    () =>
      ask({}, ({ failure }) => {
        expect(heard.length, failure?.message).toBeGreaterThan(0);
        expect(heard.join("\n")).not.toContain(secret);
        expect(heard.join("\n").toLowerCase()).not.toContain("authorization");
        expect(failure?.message).toContain("vLLM"); // it is none, which is what ends the worker
      }),
    240_000,
  );

  test("is not even asked where a variable of the agent's user is to go with it", () => {
    heard.length = 0;
    return ask({ apiKeyVariable: "HOSTILE_TEST_KEY" }, ({ failure }) => {
      expect(failure?.cause?.code ?? failure?.code).toBe("node.forbidden");
      expect(heard).toEqual([]);
    });
  }, 240_000);

  test("is not even asked where its model is none that the agent has named", () => {
    heard.length = 0;
    return ask({ model: "/etc" }, ({ failure }) => {
      expect(failure?.cause?.code ?? failure?.code).toBe("node.forbidden");
      expect(heard).toEqual([]);
    });
  }, 240_000);

  test(
    "is not asked beyond this machine unless the configuration says so",
    () =>
      ask({ url: "http://192.0.2.1:9" }, ({ failure }) => {
        expect(failure?.message).toContain("engine.allowRemote");
      }),
    240_000,
  );
});
