import { sglangLauncher } from "../sglang/sglang-launcher.ts";
import { vllmLauncher } from "../vllm/vllm-launcher.ts";
import { installOf, pythonOf, type ServerLauncher } from "./server-launch.ts";

/** By the kind of engine that they serve. */
export const serverLaunchers = { sglang: sglangLauncher, vllm: vllmLauncher } as const satisfies Record<
  string,
  ServerLauncher
>;

/** What `treadle doctor` looks for, and how to get it. */
export type InstallableServer = {
  readonly kind: string;
  readonly name: string;
  /** on PyPI */
  readonly distributions: readonly string[];
  readonly install: string;
  /** interpreter of the environment that this makes */
  readonly python: string;
};

export const installableServers = (): InstallableServer[] =>
  Object.entries(serverLaunchers).map(([kind, launcher]) => ({
    kind,
    name: launcher.name,
    distributions: launcher.distributions,
    install: installOf(launcher),
    python: pythonOf(launcher),
  }));
