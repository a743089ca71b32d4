import { z } from "zod";
import { policies } from "../decide/policies.ts";
import { leastDiskBytes, mostDiskBytes } from "../drivers/disk-image.ts";
import { checkDriverChoice, driverChoice } from "../drivers/open-driver.ts";
import { longestTimerMs } from "../formulation/action-spec.ts";
import { CpuNode } from "../managers/cpu.ts";
import { GpuCluster } from "../managers/gpu.ts";
import { Quota } from "../managers/quota.ts";
import { Network } from "../network/sandbox-network.ts";
import { ModelService } from "../services/process-services.ts";

/** Nobody on another machine reaches it. */
export const isLocal = (address: string): boolean => /^(unix:|localhost:|127(\.\d+){3}:|\[::1\]:)/.test(address);

const mebibytes = z.number().positive();
const diskMebibytes = z
  .number()
  .min(leastDiskBytes / 2 ** 20)
  .max(mostDiskBytes / 2 ** 20);
const name = z.string().regex(/^[A-Za-z0-9][A-Za-z0-9_.-]*$/, "is made of letters, digits, '_', '.' and '-'");

const servedPaths = z
  .array(
    z
      .string()
      .regex(/^(\/[A-Za-z0-9_-][A-Za-z0-9_.~-]*)+(\/\*)?$/, "is a path such as /score, or /v1/* for all below one"),
  )
  .min(1);

/** A machine on which `treadle actions host` runs. */
const Host = z
  .strictObject({
    /** host:port or unix:/path */
    address: z.string().min(1),
    /** file with the token that the host was given */
    tokenFile: z.string().min(1).optional(),
    /** file of what signed its certificate, PEM: the connection is encrypted */
    authority: z.string().min(1).optional(),
    /** sends the token to another machine in the clear, where nobody else is */
    insecure: z.boolean().default(false),
  })
  .refine(({ address, authority, insecure }) => insecure || authority !== undefined || isLocal(address), {
    path: ["authority"],
    message: "it is another machine: give its certificate's authority, or set insecure: true",
  });

/** Cores, allocated on execution. */
const CpuResource = z.strictObject({
  type: z.literal("cpu"),
  /** core numbers by NUMA node; this machine's when absent */
  numa: CpuNode.shape.numa.optional(),
  /** by name, the machines that commands run on, in place of this one; `drivers` are theirs to choose */
  hosts: z
    .record(name, Host)
    .refine((hosts) => Object.keys(hosts).length > 0, { message: "names one at least" })
    .refine((hosts) => new Set(Object.values(hosts).map(({ address }) => address)).size === Object.keys(hosts).length, {
      message: "name each machine once: two have the same address",
    })
    .optional(),
  /** how long a start waits for hosts that do not answer: one whose last service fell silent takes 20 s to notice */
  hostWaitSeconds: z.number().nonnegative().max(3600).default(25),
  /** memory that may be reserved, as a multiple of what exists */
  overcommit: z.number().min(1).default(1),
});
const QuotaResource = z.strictObject({ type: z.literal("quota"), ...Quota.shape });

/** Devices, evict-on-execution, with the services that may be on them. */
const GpuResource = z.strictObject({
  type: z.literal("gpu"),
  /** accelerators that it has */
  devices: GpuCluster.shape.devicesPerNode,
  /** of each, for its services */
  memoryMibPerDevice: mebibytes,
  /** without accelerators: a device is a part of the main memory, and free is what the services do not use */
  mainMemory: z.boolean().default(false),
  /** by their numbers on this machine; the first ones when absent. Those of a run's workers are not to be among them */
  accelerators: z.array(z.int().nonnegative()).optional(),
  /** by the name that clients ask for */
  services: z.record(
    name,
    ModelService.extend({
      /** of a request of OpenAI's API, what further devices do not make shorter; a guess, until executions show what they do */
      serialShare: z.number().min(0).max(1).default(0.1),
      /** that a client may ask by `service` in `Submit`, and by OpenAI's API: a path, or `/v1/*` for all below one. What controls an engine is not for clients */
      paths: servedPaths.default(["/v1/*"]),
      /** the numbers of devices that it runs on */
      variants: z
        .array(
          z.strictObject({
            /** devices, which are neighbours */
            dop: z.int().positive().max(8),
            /** that it takes of every device */
            memoryMib: z.number().nonnegative(),
            /** a first guess, until one was measured */
            restoreSeconds: z.number().nonnegative().optional(),
          }),
        )
        .min(1),
    }),
  ),
});

/** An external API like OpenAI's, behind a quota. */
const Upstream = z
  .strictObject({
    /** of the API, with what comes before `/chat/completions`, such as `https://api.example.com/v1` */
    url: z.url({ protocol: /^https?$/ }).refine((url) => /^[^?#@]*$/.test(url), "has no query, user or password"),
    /** file with the key of its account, which tenants never see */
    keyFile: z.string().min(1).optional(),
    /** file of what signed its certificate, PEM, where Node does not know it */
    authority: z.string().min(1).optional(),
    /** sends the key to another machine in the clear, where nobody else is */
    insecure: z.boolean().default(false),
    /** the resource of type quota that bounds it */
    quota: z.string().min(1),
    /** that a request takes of the quota */
    units: z.number().positive().default(1),
    /** by the name that clients ask for, what the API calls each */
    models: z
      .record(z.string().min(1).max(200), z.string().min(1).max(200))
      .refine((models) => Object.keys(models).length > 0, { message: "names one at least" }),
    /** what clients may ask it, by OpenAI's API and by `service` in `Submit` */
    paths: servedPaths
      .refine((paths) => paths.every((path) => path.startsWith("/v1/")), { message: "are below /v1, as in /v1/score" })
      .default(["/v1/chat/completions", "/v1/completions", "/v1/embeddings"]),
    /** further attempts after 429 or 503, each no sooner than Retry-After */
    retries: z.int().nonnegative().max(100).default(4),
  })
  .refine(({ url, insecure }) => insecure || url.startsWith("https:") || isLocal(`${new URL(url).host}:`), {
    path: ["url"],
    message: "sends requests to another machine in the clear; give https, or set insecure: true",
  });

/** OpenAI's API in front of the model services, and of others' models. */
const OpenAi = z.strictObject({
  /** host:port or unix:/path; port 0 for any that is free */
  listen: z.string().min(1).default("127.0.0.1:50062"),
  /** of one tenant, waiting and running; further ones are answered with 429 */
  requests: z.int().positive().default(1024),
  /** of one request */
  bodyMib: mebibytes.default(16),
  /** of all requests of one tenant together */
  waitingMib: mebibytes.default(256),
  /** that a request may take, with its wait, where it states no `x-treadle-deadline-ms` */
  deadlineSeconds: z
    .number()
    .positive()
    .max(longestTimerMs / 1000)
    .default(14_400),
  /** external APIs whose models it serves, too */
  upstreams: z.array(Upstream).default([]),
});

const Tenant = z.strictObject({
  /** of what is contended, as a weight against the others' */
  share: z.number().positive().default(1),
  /** file with the token that its clients send; a tenant without one exists only where nobody has one */
  tokenFile: z.string().min(1).optional(),
});

/** `treadle actions serve`. */
export const ActionServiceConfig = z
  .strictObject({
    /** host:port or unix:/path; port 0 for any that is free */
    listen: z.string().min(1).default("127.0.0.1:50061"),
    ...driverChoice,
    drivers: driverChoice.drivers.default(["cgroup"]),
    /** what actions take, by name; below, the keys of each type */
    resources: z
      .record(name, z.discriminatedUnion("type", [CpuResource, QuotaResource, GpuResource]))
      .default({ cpu: { type: "cpu", hostWaitSeconds: 25, overcommit: 1 } })
      .refine((r) => Object.values(r).filter(({ type }) => type === "cpu").length <= 1, {
        message: "one resource of type 'cpu' is allowed: two would grant the same cores twice",
      })
      .refine((r) => Object.values(r).filter(({ type }) => type === "gpu").length <= 1, {
        message: "one resource of type 'gpu' is allowed: two would grant the same devices twice",
      })
      .refine(
        (r) =>
          Object.values(r).every(
            (one) => one.type !== "gpu" || new Set(one.accelerators ?? Array(one.devices).keys()).size === one.devices,
          ),
        { message: "accelerators of a gpu resource are as many as its devices, each once" },
      )
      .refine(
        (r) =>
          Object.values(r).every(
            (one) => one.type !== "quota" || one.concurrency !== undefined || one.windows.length > 0,
          ),
        { message: "a quota gives concurrency, windows, or both" },
      ),
    /** OpenAI's API in front of models; default: none */
    openai: OpenAi.optional(),
    /** what trajectories may ask for: `host`, the machine's own, or `{ proxy: [...] }`, what is on the list */
    network: Network,
    /** files that `treadle actions profile` wrote: what is known of their kinds, whoever submits them */
    profiles: z.array(z.string().min(1)).default([]),
    /** folder of what was learned of how long kinds take and how they scale, for the next start; one service at a time has it; default: it is forgotten */
    state: z.string().min(1).optional(),
    /** which action gets what, and when: `paper` as ARL-Tangram has it, `fcfs-min` each its least, in turn */
    policy: z.enum(policies).default("unit-aware"),
    /** units that the policy 'fixed-dop' gives */
    dop: z.int().positive().default(4),
    /** who shares it, by name; without tokens others may come, with share 1 */
    tenants: z.record(name, Tenant).default({}),
    /** open at once at each address that it listens at, of which one address of another machine has half; the longest idle gives way */
    connections: z.int().min(2).default(2048),
    /** of every tenant */
    limits: z
      .strictObject({
        /** of one tenant, open at once */
        trajectories: z.int().positive().default(4096),
        /** of one tenant, waiting and running at once */
        actions: z.int().positive().default(65_536),
        /** of output that a tenant's clients have not read; it is kept in files below the folder for temporary ones */
        unreadMib: mebibytes.default(256),
        /** of a trajectory that states nothing: reserved, and its limit */
        trajectoryMemoryMib: mebibytes.default(512),
        /** the most that a trajectory may state */
        maxTrajectoryMemoryMib: mebibytes.default(4096),
        /** of the files of a trajectory that states nothing; default 10,240 where its driver can hold it, else none */
        trajectoryDiskMib: diskMebibytes.optional(),
        /** the most that a trajectory may state */
        maxTrajectoryDiskMib: diskMebibytes.default(65_536),
        /** of copies of trajectories, from which others begin; they are kept below the folder for temporary files, or by Docker */
        snapshots: z.int().positive().default(256),
        /** of all of a tenant's copies together */
        snapshotMib: mebibytes.default(16_384),
        /** of a folder that goes into a sandbox or out of it, and of a tenant's that are on their way; they are kept like output */
        transferMib: mebibytes.default(4096),
        /** files, folders and links of one */
        transferEntries: z.int().positive().default(250_000),
        /** after so long without a call a trajectory is closed, as its client may have died; longer than a model thinks */
        idleSeconds: z
          .number()
          .positive()
          .max(longestTimerMs / 1000)
          .default(3600),
        /** how long an action with an idempotency key waits for a call that was lost, and is remembered after its end */
        repeatSeconds: z
          .number()
          .nonnegative()
          .max(longestTimerMs / 1000)
          .default(60),
      })
      .prefault({}),
    /** how long SIGTERM waits for what is queued and runs */
    drainSeconds: z.number().nonnegative().default(30),
    /** encrypts connections; default: they are in the clear */
    tls: z
      .strictObject({
        /** file of its certificate, PEM */
        certificate: z.string().min(1),
        /** file of its private key, PEM */
        key: z.string().min(1),
        /** file of what signs certificates of clients, which then need one, PEM */
        clientAuthority: z.string().min(1).optional(),
      })
      .optional(),
    /** accepts other machines and other users of this one without TLS and tokens, where nobody else is */
    insecure: z.boolean().default(false),
  })
  .superRefine((config, context) => {
    checkDriverChoice(config, context);
    for (const [key, resource] of Object.entries(config.resources)) {
      if (resource.type !== "cpu" || resource.hosts === undefined) continue;
      const theirs = { [`resources.${key}.numa`]: resource.numa, docker: config.docker, cgroup: config.cgroup };
      for (const [path, value] of Object.entries(theirs))
        if (value !== undefined)
          context.addIssue({
            code: "custom",
            path: path.split("."),
            message: "is of this machine, and commands run on `hosts`; leave it out, and give it to each host",
          });
    }
    const tokens = Object.values(config.tenants).filter(({ tokenFile }) => tokenFile !== undefined).length;
    const issue = (path: string[], message: string): void => context.addIssue({ code: "custom", path, message });
    if (tokens > 0 && tokens < Object.keys(config.tenants).length)
      issue(["tenants"], "either every tenant has a tokenFile or none has");
    for (const [path, address] of [
      [["listen"], config.listen],
      [["openai", "listen"], config.openai?.listen],
    ] as const)
      if (address !== undefined && !isLocal(address) && !config.insecure && (config.tls === undefined || tokens === 0))
        issue(
          [...path],
          "other machines reach this address: give tls and every tenant a tokenFile, or listen at 127.0.0.1, or set insecure: true",
        );
    const { openai } = config;
    const served = Object.values(config.resources).flatMap((one) =>
      one.type === "gpu" ? Object.keys(one.services) : [],
    );
    if (openai !== undefined && served.length + openai.upstreams.length === 0)
      issue(["openai"], "there is no model: add a resource of type gpu with services, or upstreams, or leave it out");
    for (const [i, { quota, models }] of openai?.upstreams.entries() ?? []) {
      const resource = config.resources[quota];
      const path = ["openai", "upstreams", String(i)];
      if (resource?.type !== "quota")
        issue([...path, "quota"], `'${quota}' is no resource of type quota; add it to resources`);
      for (const model of Object.keys(models))
        if (served.includes(model))
          issue([...path, "models"], `'${model}' is served already; give each model one name`);
      served.push(...Object.keys(models));
    }
    if (config.limits.trajectoryMemoryMib > config.limits.maxTrajectoryMemoryMib)
      issue(["limits", "trajectoryMemoryMib"], "is at most limits.maxTrajectoryMemoryMib");
    if ((config.limits.trajectoryDiskMib ?? 0) > config.limits.maxTrajectoryDiskMib)
      issue(["limits", "trajectoryDiskMib"], "is at most limits.maxTrajectoryDiskMib");
  });
export type ActionServiceConfig = z.infer<typeof ActionServiceConfig>;
