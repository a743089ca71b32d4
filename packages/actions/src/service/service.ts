/**
 * The actions service alone, as its configuration says: managers, a driver, a pool and the gRPC door, opened together and
 * closed together.
 */
import { resolve } from "node:path";
import { TreadleError } from "@treadle/contracts";
import { systemClock } from "@treadle/transport";
import { endInTurn } from "../end-in-turn.ts";
import { ActionHistory } from "../formulation/action-history.ts";
import { boundAddress } from "../grpc/listen.ts";
import { type ActionServer, serveActions } from "../grpc/server.ts";
import { CpuManager } from "../managers/cpu.ts";
import { GpuManager } from "../managers/gpu.ts";
import { machineOf } from "../managers/host.ts";
import type { ResourceManager, ServiceInstance } from "../managers/manager.ts";
import { QuotaManager } from "../managers/quota.ts";
import { networkOf } from "../network/sandbox-network.ts";
import { serveOpenAi } from "../openai/openai-endpoint.ts";
import { ActionPool } from "../pool/action-pool.ts";
import type { ActionContext } from "../pool/action-record.ts";
import { CommandActions } from "../pool/command-actions.ts";
import { guardMemory } from "../pool/memory-guard.ts";
import { servicePreparation } from "../pool/service-preparation.ts";
import { ProcessServices } from "../services/process-services.ts";
import { filesIn, profilesIn, tokenIn, upstreamsIn } from "./config-files.ts";
import { LearnedFile } from "./learned-file.ts";
import { openMachines, thisMachine } from "./machines.ts";
import type { ActionServiceConfig } from "./service-config.ts";

export type ActionService = {
  /** where clients reach it */
  readonly address: string;
  /** where clients of OpenAI's API do */
  readonly openAiUrl: string | undefined;
  readonly driver: string;
  readonly isolation: string;
  /** what whoever started it should know of who can call */
  readonly warning: string | undefined;
  /** of each resource, what one action can get at most */
  readonly capacities: Readonly<Record<string, number>>;
  readonly drain: ActionServer["drain"];
  /** Leaves no call, trajectory, sandbox or process. */
  close(): Promise<void>;
};

/** of trajectories for which nobody says anything */
const usualDiskMib = 10_240;

/**
 * Files of the configuration are relative to `folder`; `tell` is told of hosts that are away, come and go, and of what
 * was learned before. Throws `config.invalid` and `sandbox.unavailable`.
 */
export async function openActionService(
  config: ActionServiceConfig,
  folder: string,
  tell: (line: string) => void = () => {},
): Promise<ActionService> {
  const learned = config.state === undefined ? undefined : await LearnedFile.open(resolve(folder, config.state), tell);
  try {
    return await openWith(config, folder, tell, learned);
  } catch (error) {
    await learned?.close();
    throw error;
  }
}

async function openWith(
  config: ActionServiceConfig,
  folder: string,
  tell: (line: string) => void,
  learned: LearnedFile | undefined,
): Promise<ActionService> {
  const { listen, limits, tls, tenants } = config;
  const files = filesIn(folder);
  const tokens = new Map<string, string>();
  for (const [tenant, { tokenFile }] of Object.entries(tenants)) {
    if (tokenFile === undefined) continue;
    const key = `tenants.${tenant}.tokenFile`;
    const token = await tokenIn(files, tokenFile, key);
    if (tokens.has(token))
      throw new TreadleError(
        "config.invalid",
        `${key}: '${tokenFile}' has the token of another tenant; give every tenant a secret of its own`,
      );
    tokens.set(token, tenant);
  }
  const certificates = await files.certificates(tls);
  const stored = await profilesIn(files, config.profiles, coresOf(config));
  const history = new ActionHistory(stored, learned?.saved);
  const managers = managersOf(config);
  const upstreams = await upstreamsIn(files, config, managers);
  const cpu = managers.find((manager) => manager instanceof CpuManager);
  const devices = servicesOf(config, managers);
  const machines = await openMachines(config, files, cpu);
  const { driver } = machines;
  const pool = new ActionPool({
    managers,
    prepare: devices && servicePreparation(devices.manager, devices.services, systemClock),
    decide: { policy: config.policy, dop: config.dop },
    history,
    tenantWeights: new Map(Object.entries(tenants).map(([tenant, { share }]) => [tenant, share])),
  });
  const actions = new CommandActions(pool, driver, {
    diskBytes: Math.min(usualDiskMib, limits.maxTrajectoryDiskMib) * 2 ** 20,
  });
  machines.onChange((host, why) => {
    tell(why === undefined ? `host '${host}' is there` : `host '${host}' was lost: ${why}; its trajectories end`);
    if (why !== undefined) void actions.endLost();
    pool.changed();
  });
  for (const [host, { away }] of Object.entries(machines.hosts?.() ?? {}))
    if (away !== undefined) tell(`host '${host}' is away: ${away}; it joins when it answers`);
  const { memory } = machines;
  const unguard = cpu === undefined ? () => {} : guardMemory({ actions, cpu, clock: systemClock, memory });
  const instanceOf = (service: string, allocation: ActionContext["allocation"]): ServiceInstance | undefined => {
    const grant = allocation[devices?.manager.resource ?? ""];
    return grant?.devices && { service, dop: grant.units, chunk: grant.devices.chunk };
  };
  const services = devices && {
    served: devices.served,
    urlOf: (service: string, allocation: ActionContext["allocation"]) => {
      const instance = instanceOf(service, allocation);
      return instance === undefined ? "" : devices.services.url(instance);
    },
    endIfDead: async (service: string, allocation: ActionContext["allocation"]) => {
      const instance = instanceOf(service, allocation);
      if (instance !== undefined) await devices.services.endIfDead(instance);
    },
    restoreCosts: () => devices.manager.restoreCosts(),
  };
  const { insecure, connections } = config;
  const callers = { tls: certificates, tokens: tokens.size > 0 ? tokens : undefined, insecure, connections };
  const abandon = async (error: unknown): Promise<never> => {
    unguard();
    await actions.close();
    await devices?.services.close();
    throw error;
  };
  const server = await serveActions(actions, {
    address: listen,
    ...callers,
    network: networkOf(config.network) ?? "none",
    hosts: machines.hosts,
    commandResources: managers.filter((manager) => manager instanceof CpuManager).map(({ resource }) => resource),
    services,
    upstreams,
    limits: {
      trajectories: limits.trajectories,
      actions: limits.actions,
      unreadBytes: limits.unreadMib * 2 ** 20,
      memoryBytes: limits.trajectoryMemoryMib * 2 ** 20,
      maxMemoryBytes: limits.maxTrajectoryMemoryMib * 2 ** 20,
      diskBytes: limits.trajectoryDiskMib === undefined ? undefined : limits.trajectoryDiskMib * 2 ** 20,
      maxDiskBytes: limits.maxTrajectoryDiskMib * 2 ** 20,
      snapshots: limits.snapshots,
      snapshotBytes: limits.snapshotMib * 2 ** 20,
      transferBytes: limits.transferMib * 2 ** 20,
      transferEntries: limits.transferEntries,
      idleMs: limits.idleSeconds * 1000,
      repeatMs: limits.repeatSeconds * 1000,
    },
  }).catch(abandon);
  const { openai: options } = config;
  const openai =
    options &&
    (await serveOpenAi({
      address: options.listen,
      ...callers,
      pool,
      services,
      upstreams,
      requests: options.requests,
      bodyBytes: options.bodyMib * 2 ** 20,
      deadlineMs: options.deadlineSeconds * 1000,
      waitingBytes: options.waitingMib * 2 ** 20,
    }).catch(async (error: unknown) => {
      await server.close();
      return abandon(error);
    }));
  learned?.keep(history);
  return {
    address: boundAddress(listen, server.port),
    openAiUrl: openai && urlAt(boundAddress(options!.listen, openai.port), tls !== undefined),
    driver: driver.name,
    isolation: driver.isolation,
    warning: server.warning ?? openai?.warning,
    capacities: Object.fromEntries(managers.map(({ resource, capacity }) => [resource, capacity])),
    async drain(timeoutMs) {
      await Promise.all([server.drain(timeoutMs), openai?.drain(timeoutMs)]);
      return pool.numWaiting + pool.numRunning;
    },
    async close() {
      unguard();
      await endInTurn(
        () => [server.close(), openai?.close()],
        () => [actions.close()],
        () => [devices?.services.close(), learned?.close()],
      );
    },
  };
}

function servicesOf({ resources }: ActionServiceConfig, managers: readonly ResourceManager[]) {
  const manager = managers.find((one) => one instanceof GpuManager);
  const resource = Object.values(resources).find(({ type }) => type === "gpu");
  if (manager === undefined || resource?.type !== "gpu") return undefined;
  const services = new ProcessServices({
    services: Object.fromEntries(
      Object.entries(resource.services).map(([service, { variants: _, serialShare: __, paths: ___, ...model }]) => [
        service,
        model,
      ]),
    ),
    accelerators: resource.accelerators,
    mainMemoryBytes: resource.mainMemory ? resource.memoryMibPerDevice * 2 ** 20 : undefined,
    onLost: (instance) => manager.lost(instance),
  });
  const served = Object.entries(resource.services).map(([name, { variants, serialShare, paths }]) => {
    return { name, resource: manager.resource, dops: variants.map(({ dop }) => dop), serialShare, paths };
  });
  return { manager, services, served };
}

/** The resource whose units commands have. */
const coresOf = ({ resources }: ActionServiceConfig): string | undefined =>
  Object.entries(resources).find(([, { type }]) => type === "cpu")?.[0];

const urlAt = (address: string, isEncrypted: boolean): string =>
  address.startsWith("unix:") ? address : `${isEncrypted ? "https" : "http"}://${address}/v1`;

function managersOf({ resources, limits }: ActionServiceConfig): ResourceManager[] {
  return Object.entries(resources).map(([name, resource]) => {
    if (resource.type === "quota")
      return new QuotaManager(name, { windows: resource.windows, concurrency: resource.concurrency });
    if (resource.type === "gpu") {
      const services = Object.entries(resource.services).map(([service, { variants }]) => {
        const sized = variants.map(({ memoryMib, ...variant }) => ({ ...variant, memoryBytes: memoryMib * 2 ** 20 }));
        return [service, sized] as const;
      });
      return new GpuManager(
        {
          nodes: 1,
          devicesPerNode: resource.devices,
          memoryBytesPerDevice: resource.memoryMibPerDevice * 2 ** 20,
          services: Object.fromEntries(services),
        },
        name,
      );
    }
    // Hosts join when they are attached.
    const nodes = resource.hosts ? [] : [{ id: thisMachine, ...machineOf(resource.numa, `resources.${name}.numa`) }];
    const trajectoryMemoryBytes = limits.trajectoryMemoryMib * 2 ** 20;
    return new CpuManager({ nodes, overcommit: resource.overcommit, trajectoryMemoryBytes }, name);
  });
}
