/**
 * The actions service alone, as its configuration says: managers, a driver, a pool and the gRPC door, opened together and
 * closed together.
 */
import { readFile } from "node:fs/promises";
import { resolve } from "node:path";
import { TreadleError } from "@treadle/contracts";
import { openDriver } from "../drivers/open-driver.ts";
import { type ActionServer, serveActions } from "../grpc/server.ts";
import { CpuManager } from "../managers/cpu.ts";
import { describeHost } from "../managers/host.ts";
import type { ResourceManager } from "../managers/manager.ts";
import { QuotaManager } from "../managers/quota.ts";
import { ActionPool } from "../pool/action-pool.ts";
import { CommandActions } from "../pool/command-actions.ts";
import type { ActionServiceConfig } from "./service-config.ts";

export type ActionService = {
  /** where clients reach it */
  readonly address: string;
  readonly driver: string;
  readonly isolation: string;
  /** of each resource, what one action can get at most */
  readonly capacities: Readonly<Record<string, number>>;
  readonly drain: ActionServer["drain"];
  /** Leaves no call, trajectory, sandbox or process. */
  close(): Promise<void>;
};

/** Files of the configuration are relative to `folder`. Throws `config.invalid` and `sandbox.unavailable`. */
export async function openActionService(config: ActionServiceConfig, folder: string): Promise<ActionService> {
  const { listen, limits, tls, tenants } = config;
  const read = (path: string, key: string): Promise<Buffer> =>
    readFile(resolve(folder, path)).catch((cause: Error) => {
      throw new TreadleError("config.invalid", `${key}: '${path}' cannot be read: ${cause.message}`, { cause });
    });
  const tokens = new Map<string, string>();
  for (const [tenant, { tokenFile }] of Object.entries(tenants)) {
    if (tokenFile === undefined) continue;
    const token = (await read(tokenFile, `tenants.${tenant}.tokenFile`)).toString().trim();
    if (token === "" || tokens.has(token))
      throw new TreadleError(
        "config.invalid",
        `tenants.${tenant}.tokenFile: '${tokenFile}' ${token === "" ? "is empty" : "has the token of another tenant"}; give every tenant a secret of its own`,
      );
    tokens.set(token, tenant);
  }
  const certificates = tls && {
    key: await read(tls.key, "tls.key"),
    certificate: await read(tls.certificate, "tls.certificate"),
    clientAuthority: tls.clientAuthority && (await read(tls.clientAuthority, "tls.clientAuthority")),
  };
  const managers = managersOf(config);
  const driver = await openDriver(config);
  const pool = new ActionPool({
    managers,
    decide: { policy: config.policy, dop: config.dop },
    tenantWeights: new Map(Object.entries(tenants).map(([tenant, { share }]) => [tenant, share])),
  });
  const actions = new CommandActions(pool, driver);
  const server = await serveActions(actions, {
    address: listen,
    tls: certificates && { ...certificates, clientAuthority: certificates.clientAuthority || undefined },
    tokens: tokens.size > 0 ? tokens : undefined,
    limits: {
      trajectories: limits.trajectories,
      actions: limits.actions,
      memoryBytes: limits.trajectoryMemoryMib * 2 ** 20,
      maxMemoryBytes: limits.maxTrajectoryMemoryMib * 2 ** 20,
      idleMs: limits.idleSeconds * 1000,
    },
  }).catch(async (error: unknown) => {
    await actions.close();
    throw error;
  });
  return {
    address: listen.startsWith("unix:") ? listen : listen.replace(/:\d+$/, `:${server.port}`),
    driver: driver.name,
    isolation: driver.isolation,
    capacities: Object.fromEntries(managers.map(({ resource, capacity }) => [resource, capacity])),
    drain: server.drain,
    async close() {
      await server.close();
      await actions.close();
    },
  };
}

function managersOf({ resources, limits }: ActionServiceConfig): ResourceManager[] {
  return Object.entries(resources).map(([name, resource]) => {
    if (resource.type === "quota")
      return new QuotaManager(name, { windows: resource.windows, concurrency: resource.concurrency });
    const host = describeHost();
    const known = new Set(host.numa.flat());
    const unknown = (resource.numa ?? []).flat().filter((core) => !known.has(core));
    if (unknown.length > 0)
      throw new TreadleError(
        "config.invalid",
        `resources.${name}.numa: core '${unknown.join(", ")}' is none of this machine's, which are ${[...known].join(", ")}`,
      );
    const node = { ...host, numa: resource.numa ?? host.numa };
    const trajectoryMemoryBytes = limits.trajectoryMemoryMib * 2 ** 20;
    return new CpuManager({ nodes: [node], overcommit: resource.overcommit, trajectoryMemoryBytes }, name);
  });
}
