import { pathToFileURL } from "node:url";
import type { SpawnCommand } from "@treadle/contracts";

export type SpawnChanges = { readonly over?: object; readonly boot?: object };

/** A runner's command to start rank 0 of a component, as an agent of this project takes it, but for what is changed. */
export function spawnCommand(project: string, codeHash: string, { over = {}, boot = {} }: SpawnChanges = {}): object {
  const command: SpawnCommand = {
    run: "run-1",
    session: 1,
    segmentPrefix: "treadle-run-1.1-",
    modulePath: "worker.ts",
    projectRoot: pathToFileURL(`${project}/`).href,
    codeHash,
    env: {},
    boot: {
      runId: "run-1",
      component: "maker",
      rank: 0,
      rankDevices: [1],
      incarnation: 0,
      devices: ["a/cpu:0"],
      module: "",
      exportName: "MakerWorker",
      runnerAddresses: ["tcp:127.0.0.1:1"],
      token: "a token of enough characters",
      seed: 0,
      trace: false,
      startTimeoutMs: 120_000,
      peerTimeoutMs: 120_000,
    },
  };
  return { ...command, ...over, boot: { ...command.boot, ...boot } };
}
