import { once } from "node:events";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, onTestFinished, test, vi } from "vitest";
import { HostProcess } from "../../src/node/host-process.ts";

test("a worker's process has its agent's environment without the keys to the control plane and to whoever may look", async () => {
  const folder = await mkdtemp(join(tmpdir(), "treadle-e-"));
  onTestFinished(() => rm(folder, { recursive: true }));
  const secrets = ["NATS_URL", "NATS_USER", "NATS_PASSWORD", "NATS_TOKEN", "METRICS_TOKEN", "DASHBOARD_TOKEN"];
  for (const name of secrets) vi.stubEnv(`TREADLE_${name}`, "what only the agent may know");
  vi.stubEnv("TREADLE_PYTHON", "/opt/python");
  onTestFinished(() => void vi.unstubAllEnvs());
  const command = join(folder, "says-its-environment.sh");
  await writeFile(command, `#!/bin/sh\nenv > '${join(folder, "environment")}'\n`, { mode: 0o755 });
  const host = await HostProcess.start("a", {
    interpreter: { command, flags: [] },
    env: { OMP_NUM_THREADS: "2" },
    rights: undefined,
    projectRoot: folder,
  });
  await once(host.child, "exit");
  await host.descendants.end();
  const lines = (await readFile(join(folder, "environment"), "utf8")).split("\n");
  expect(lines).toEqual(expect.arrayContaining(["OMP_NUM_THREADS=2", "TREADLE_PYTHON=/opt/python"]));
  expect(lines.filter((line) => line.includes("what only the agent may know"))).toEqual([]);
});
