/**
 * The configuration that a worker fetches from whoever commands it, before an agent that allows nothing: no program, variable
 * or file of its choosing is started, set or imported.
 */
import { existsSync } from "node:fs";
import { chmod, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type ExitReport, type Member, runProtocol } from "@treadle/contracts";
import { createPeer, localControlPlanes, openEndpoint } from "@treadle/transport";
import { expect, test } from "vitest";
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
    "the program of a reward model",
    "tool/reward-model-worker.ts",
    "RewardModelWorker",
    (evil) => ({
      models: { judge: { command: [evil], memoryMiB: 1, weight: 1, devices: 1, restoreSeconds: 1 } },
      ...{ devices: 1, memoryMiBPerDevice: 8, memory: "main", path: "/score", timeoutMs: 1000, alphabet: "abc" },
    }),
  ],
  [
    "commands without isolation",
    "tool/tool-worker.ts",
    "ToolWorker",
    (evil) => ({
      name: "tool",
      program: evil,
      cores: 1,
      actions: {
        ...{ scheduling: "action", policy: "unit-aware", cores: "all", sandboxes: "slot", timeoutMs: 2000 },
        ...{ maxOutputBytes: 4096, memoryMiB: 64, maxProcesses: 32, network: false, drivers: ["process"] },
      },
    }),
  ],
];

test.each(attacks)("PGR1: %s", async (_, module, exportName, config) => {
  const root = await mkdtemp(join(tmpdir(), "treadle-h-"));
  const mark = join(root, "was-run");
  const evil = join(root, "evil.sh");
  await writeFile(evil, `#!/bin/sh\nid > ${mark}\n`);
  await writeFile(`${evil}.py`, `open(${JSON.stringify(mark)}, "w").close()\ndef f(**_): return 0\n`);
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
    expect(failure?.message).toMatch(/'a' (does not start a worker whose configuration|does not allow)|'\/bin\/sh'/);
    expect(["node.forbidden", "sandbox.unavailable"]).toContain(failure?.cause?.code);
    expect(existsSync(mark)).toBe(false);
  } finally {
    await runner.close();
    await service.close("over");
    await plane.close();
    await rm(root, { recursive: true, force: true });
  }
});
