/**
 * By which path the weights of what trains reach what samples or scores, rank by rank, and why by no other. Workers follow the same
 * rules (`pullWeights`), and find out besides whether they can open what was published: a path that a file system breaks becomes
 * `bytes`, which works everywhere. Pure.
 */
import type { EngineFacts, ModelWork, Plan } from "@treadle/contracts";

export const weightPathNames = ["shared", "ipc", "collective", "disk", "bytes"] as const;

/**
 * `shared`: one module; `ipc`: memory of a device that another process maps; `collective`: from process to process over NCCL or gloo; `disk`: a file
 * that the engine reads, which may lie in memory; `bytes`: through Node, from process to process.
 */
export type WeightPathName = (typeof weightPathNames)[number];

export type WeightPath = {
  /** of the trainer and of the receiver */
  readonly from: string;
  readonly to: string;
  /** of the receiver: so many take this path */
  readonly numRanks: number;
  /** `none`: nothing is moved */
  readonly path: WeightPathName | "none";
  /** the numbers pass through the memory of Node */
  readonly isThroughNode: boolean;
  readonly why: string;
  readonly refused: readonly { readonly path: WeightPathName; readonly why: string }[];
};

export type ModelEngine = {
  readonly name: string;
  readonly work: ModelWork;
  readonly engine: EngineFacts;
};

type Chosen = Pick<WeightPath, "path" | "isThroughNode" | "why"> & { readonly notDisk?: string };
type PlannedRank = Plan["components"][string]["ranks"][number];

/** Of every trainer to everything else that runs a model, by the plan's nodes. */
export function weightPaths(plan: Pick<Plan, "components">, engines: readonly ModelEngine[]): WeightPath[] {
  const trainers = engines.filter(({ work }) => work === "training");
  const others = engines.filter(({ work }) => work !== "training");
  return trainers.flatMap((trainer) => others.flatMap((other) => pathsOf(plan, trainer, other)));
}

function pathsOf({ components }: Pick<Plan, "components">, from: ModelEngine, to: ModelEngine): WeightPath[] {
  const [sources, targets] = [from, to].map(({ name }) => components[name]?.ranks ?? []);
  const found = new Map<string, WeightPath>();
  for (const [rank, target] of targets!.entries()) {
    // Ranks pull from different ranks of the trainer.
    const source = sources![rank % Math.max(1, sources!.length)];
    if (source === undefined) continue;
    const near = nearestOf(sources!, rank, target);
    const notShared = sharedRefusal(from, to, near, target);
    const notIpc = deviceRefusal(from, to, source, target);
    const { notDisk, ...chosen } =
      notShared === undefined
        ? bySharing(from, to, near!)
        : notIpc === undefined
          ? byDevice(from, to, target)
          : choose(from, to, source.node === target.node);
    const numRanks = (found.get(chosen.why)?.numRanks ?? 0) + 1;
    const refused = refusals(chosen, { notShared, notIpc, notCollective: collectiveRefusal(from, to), notDisk });
    found.set(chosen.why, { from: from.name, to: to.name, numRanks, ...chosen, refused });
  }
  return [...found.values()];
}

type Refusals = Readonly<Record<"notShared" | "notIpc" | "notCollective" | "notDisk", string | undefined>>;

function refusals({ path }: Chosen, { notShared, notIpc, notCollective, notDisk }: Refusals): WeightPath["refused"] {
  if (path === "none" || path === "shared") return [];
  const why: Readonly<Record<WeightPathName, string | undefined>> = {
    shared: notShared,
    ipc: notIpc,
    collective: notCollective ?? "it is for engines that share no device, or where that has no room",
    disk: notDisk,
    bytes: "every number would pass through Node, as float32",
  };
  return weightPathNames.flatMap((name) => {
    const reason = name === path ? undefined : why[name];
    return reason === undefined ? [] : [{ path: name, why: reason }];
  });
}

function choose(
  { name: from, engine }: ModelEngine,
  { name: to, engine: own }: ModelEngine,
  isSameNode: boolean,
): Chosen {
  if (engine.kind === "emulated" || own.kind === "emulated")
    return {
      path: "none",
      isThroughNode: false,
      why: "emulated engines have no weights, and take the time of moving them",
    };
  const { publishesIn } = engine;
  if (collectiveRefusal({ name: from, engine }, { name: to, engine: own }) === undefined)
    return {
      path: "collective",
      isThroughNode: false,
      why: `the process of '${from}' sends its file to that of '${to}', which verifies it, over ${engine.collective}`,
      notDisk: "engine.collective is set, and goes before files",
    };
  const isServer = own.kind === "sglang" || own.kind === "vllm";
  const notByFile = fileRefusal({ from, engine }, { own, isServer }, isSameNode);
  if (isServer) {
    const folder = own.readsFrom === undefined ? "the temporary folder of its host" : `'${own.readsFrom}'`;
    const server = `the server of '${to}' reads a folder in ${folder}`;
    if (notByFile !== undefined)
      return { path: "disk", isThroughNode: true, why: `${server}, which Node writes: ${notByFile}` };
    if (publishesIn === undefined)
      return {
        path: "disk",
        isThroughNode: false,
        why: `${server}, into which the system copies ${own.readsAdapters ? "the adapter alone" : "the file"} that '${from}' writes in its host's memory`,
      };
    const condition = isSameNode
      ? ""
      : ` where both nodes have '${publishesIn}' on one file system, and Node writes it where not`;
    return {
      path: "disk",
      isThroughNode: false,
      why: `${server}, with a link to ${own.readsAdapters ? "the adapter alone" : "the file"} that '${from}' writes in '${publishesIn}', or a copy of it on another file system${condition}`,
    };
  }
  if (notByFile !== undefined)
    return {
      path: "bytes",
      isThroughNode: true,
      why: `processes send them to each other: ${notByFile}`,
      notDisk: notByFile,
    };
  const place = publishesIn === undefined ? "in their host's memory" : `in '${publishesIn}'`;
  const condition =
    isSameNode || publishesIn === undefined ? "" : ", where both nodes have it on one file system; as bytes where not";
  return {
    path: "disk",
    isThroughNode: false,
    why: `'${to}' reads and verifies the file that '${from}' writes ${place}${condition}`,
  };
}

const bySharing = ({ name: from }: ModelEngine, { name: to }: ModelEngine, { devices }: PlannedRank): Chosen => ({
  path: "shared",
  isThroughNode: false,
  why: `'${to}' computes in the process of '${from}' on '${devices.join(",")}', with the module that it trains; it has no weights of its own`,
});

/** Of the trainer's ranks that whose module the receiver's rank would share, as engines find each other (MO2). */
function nearestOf(sources: readonly PlannedRank[], rank: number, target: PlannedRank): PlannedRank | undefined {
  const inOrder = sources[rank % Math.max(1, sources.length)];
  const here = sources.filter(({ node }) => node === target.node);
  const overlapping = here.filter(({ devices }) => devices.some((device) => target.devices.includes(device)));
  if (overlapping.length > 0) return overlapping.find((source) => source === inOrder) ?? overlapping[0];
  const isOnHost = [...(inOrder?.devices ?? []), ...target.devices].every((device) => /(^|\/)cpu:/.test(device));
  return isOnHost && inOrder?.node === target.node ? inOrder : undefined;
}

/** Why the receiver does not compute with the trainer's module; undefined where it does. */
function sharedRefusal(
  { name: from, engine }: ModelEngine,
  { name: to, engine: own }: ModelEngine,
  near: PlannedRank | undefined,
  target: PlannedRank,
): string | undefined {
  const stranger = [engine, own].find(({ kind }) => kind !== "torch");
  if (stranger) return `engines of kind '${stranger.kind}' run no module of PyTorch's that another could train`;
  const alone = [
    { name: from, ...engine },
    { name: to, ...own },
  ].find(({ sharesProcess }) => !sharesProcess);
  if (alone)
    return `each rank of '${alone.name}' is a process of its own, with its own copy of the model; engine.process 'shared' lets '${to}' compute in that of '${from}'`;
  if (engine.trainsAdapters) return `'${from}' trains an adapter, which what generates needs merged in`;
  if (near === undefined) return `'${to}' is on no device of '${from}'`;
  const wide = [near, target].findIndex(({ devices }) => devices.filter(isAccelerator).length > 1);
  if (wide >= 0)
    return `'${wide === 0 ? from : to}' is sharded over the devices of its rank, and a module that others share is in one process`;
  return undefined;
}

const byDevice = ({ name: from }: ModelEngine, { name: to }: ModelEngine, { devices }: PlannedRank): Chosen => ({
  path: "ipc",
  isThroughNode: false,
  why: `'${to}' maps and verifies what '${from}' keeps for it in the memory of '${devices[0]}', or reads a file where that has no room`,
  notDisk: "a file is written when somebody asks for one, or the device has no room",
});

/** Why the receiver cannot map the device's memory; undefined where it can. */
function deviceRefusal(
  { name: from, engine }: ModelEngine,
  { name: to, engine: own }: ModelEngine,
  source: PlannedRank,
  target: PlannedRank,
): string | undefined {
  const stranger = [engine, own].find(({ kind }) => kind !== "torch");
  if (stranger) return `engines of kind '${stranger.kind}' map no memory of another process's device`;
  const both = [
    { name: from, ...engine },
    { name: to, ...own },
  ];
  const elsewhere = both.find(({ weightsBy = "device" }) => weightsBy !== "device");
  if (elsewhere)
    return `weightsBy of '${elsewhere.name}' is '${elsewhere.weightsBy}'; 'device' leaves weights on a device that both compute on`;
  if (engine.trainsAdapters) return `'${from}' trains an adapter, and merges it on its host`;
  const onHost = both.find(({ device }) => device === "cpu");
  if (onHost) return `'${onHost.name}' computes on its host`;
  const wide = [source, target].findIndex(({ devices }) => devices.length > 1);
  if (wide >= 0)
    return `'${both[wide]!.name}' is sharded over the devices of its rank, and has whole weights on its host alone`;
  const [device] = source.devices;
  if (device === undefined || !isCuda(device)) return `'${from}' has no CUDA device`;
  const isSame = source.node === target.node && device === target.devices[0];
  return isSame ? undefined : `'${from}' and '${to}' compute on different devices`;
}

/** Why the two join no process group; undefined where they do. */
function collectiveRefusal(
  { name: from, engine }: Pick<ModelEngine, "name" | "engine">,
  { name: to, engine: own }: Pick<ModelEngine, "name" | "engine">,
): string | undefined {
  const stranger = [engine, own].find(({ kind }) => kind !== "torch");
  if (stranger) return `engines of kind '${stranger.kind}' join no process group with another component's`;
  const { collective = "off" } = engine;
  const { collective: other = "off" } = own;
  if (collective !== other)
    return `engine.collective is '${collective}' for '${from}' and '${other}' for '${to}'; both need the same`;
  if (collective === "off")
    return `engine.collective of '${from}' and '${to}' is 'off'; 'gloo' or 'nccl' joins them, unencrypted`;
  if (engine.weightsBy === "bytes") return `'${from}' writes no file that could be sent`;
  return undefined;
}

const isAccelerator = (device: string): boolean => /(^|\/)(cuda|rocm):/.test(device);
const isCuda = (device: string): boolean => /(^|\/)cuda:/.test(device);

/** Why the receiver, or its server, cannot be given the trainer's file; undefined where it can. */
function fileRefusal(
  { from, engine }: { readonly from: string; readonly engine: EngineFacts },
  { own, isServer }: { readonly own: EngineFacts; readonly isServer: boolean },
  isSameNode: boolean,
): string | undefined {
  const known = engine.kind === "torch" && (isServer || own.kind === "torch");
  if (!known)
    return `engines of kind '${engine.kind === "torch" ? own.kind : engine.kind}' read and write no files of weights`;
  if (engine.weightsBy === "bytes") return `weightsBy of '${from}' is 'bytes'; 'ticket' lets it write a file`;
  if (isServer && engine.valueHead && !own.readsAdapters)
    return `'${from}' has a value head, which is in no model of a server's`;
  if (!isSameNode && engine.publishesIn === undefined)
    return `'${from}' writes its file in the memory of another node; set weightsFolder to a folder that nodes share`;
  return undefined;
}
