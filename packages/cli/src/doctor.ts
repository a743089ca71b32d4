/** What this machine has and lacks, and how to get what is missing. */
import { execFile } from "node:child_process";
import { constants, existsSync, readFileSync } from "node:fs";
import { access, mkdtemp, rm, statfs, writeFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { createServer } from "node:net";
import { availableParallelism, freemem, platform, tmpdir, totalmem } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { isLoopback } from "@treadle/contracts";
import type { InstallableServer } from "@treadle/engines";
import { type AcceleratorTool, acceleratorTools, numaNodes } from "@treadle/runtime/runner";
import { isServerOnLoopback } from "@treadle/transport";
import pc from "picocolors";
import { clusterValues } from "./cluster-folder.ts";
import { type NatsInfo, natsInfo, natsProblem, readOnTheWay } from "./nats-probe.ts";
import { padCells, printableLines, singleLine, wrap } from "./view/text.ts";

export type Finding = {
  readonly name: string;
  /** `ok`, `missing`, or `limited`: it is there, and something about it will be felt */
  readonly status: "ok" | "missing" | "limited";
  /** without a `required` one nothing runs; a `recommended` one costs speed; an `optional` one is for some workflows */
  readonly need: "required" | "recommended" | "optional";
  /** what was found */
  readonly found: string;
  /** what it is for */
  readonly purpose: string;
  /** how to get it here; absent when nothing is to be done */
  readonly remedy?: string | undefined;
};

/** The ways to the machine, so that tests can stand in for another one. */
export type Probe = {
  readonly nodeVersion: string;
  readonly platform: NodeJS.Platform;
  readonly cores: number;
  readonly totalBytes: number;
  readonly freeBytes: number;
  /** standard output of a command, or undefined when it is absent, fails or takes over three seconds */
  readonly output: (command: string, ...argv: string[]) => Promise<string | undefined>;
  readonly exists: (path: string) => boolean;
  readonly read: (path: string) => string | undefined;
  /** free and total bytes of the file system, when a file can be written there */
  readonly writableSpace: (folder: string) => Promise<{ freeBytes: number; totalBytes: number } | undefined>;
  /** what the driver `cgroup` of actions lacks here; undefined where it lacks nothing */
  readonly cgroupDriverLacks: () => Promise<string | undefined>;
  /** what it lacks to limit the files of sandboxes */
  readonly diskImagesLack: () => Promise<string | undefined>;
  readonly unixSockets: () => Promise<boolean>;
  readonly mappedMemory: () => boolean;
  readonly numa: ReturnType<typeof numaNodes>;
  readonly env: Readonly<Record<string, string | undefined>>;
  /** what the server at an address says of itself, or undefined when it says nothing */
  /** of one server */
  readonly natsInfo: (url: string) => Promise<NatsInfo | undefined>;
  /** why this process could not use the server, in words; undefined when it could */
  readonly natsProblem: (url: string) => Promise<string | undefined>;
  /** the servers of the cluster's folder that was named, by --cluster or TREADLE_CLUSTER */
  readonly clusterUrl: () => Promise<string | undefined>;
};

type Remedies = { readonly debian: string; readonly macos: string };

const gib = 1024 ** 3;
const mib = 1024 ** 2;

export async function examineMachine(probe: Probe = systemProbe()): Promise<Finding[]> {
  const advise = ({ debian, macos }: Remedies) => (probe.platform === "darwin" ? macos : debian);
  const groups = await Promise.all([
    [node(probe), processors(probe), memory(probe), ...numa(probe)],
    sharing(probe),
    natsServer(probe, advise),
    accelerators(probe),
    python(probe),
    sandboxes(probe, advise),
  ]);
  return groups.flat();
}

function node({ nodeVersion }: Probe): Finding {
  const [major = 0, minor = 0] = nodeVersion.replace(/^v/, "").split(".").map(Number);
  const ok = major > 20 || (major === 20 && minor >= 11);
  return {
    name: "Node.js",
    status: ok ? "ok" : "missing",
    need: "required",
    found: nodeVersion,
    purpose: "runs everything; 20.11 or newer",
    remedy: ok ? undefined : "install Node.js 20.11 or newer, from nodejs.org or with 'nvm install 22'",
  };
}

function processors({ cores }: Probe): Finding {
  return {
    name: "processor cores",
    status: cores >= 2 ? "ok" : "limited",
    need: "recommended",
    found: `${cores}`,
    purpose: "each worker is a process; embedded engines use one core each",
    remedy: cores >= 2 ? undefined : "workers will take turns; give the container or machine more cores",
  };
}

function memory({ totalBytes, freeBytes }: Probe): Finding {
  const ok = totalBytes >= 2 * gib;
  return {
    name: "memory",
    status: ok ? "ok" : "limited",
    need: "recommended",
    found: `${size(totalBytes)}, ${size(freeBytes)} free`,
    purpose: "an embedded worker takes about 0.3 GiB",
    remedy: ok ? undefined : "use fewer ranks, or a machine with 2 GiB or more",
  };
}

/** Said only where there is something to say. */
function numa({ numa: nodes }: Probe): Finding[] {
  if (nodes.length < 2) return [];
  const each = tally(nodes.map(({ cpus, memoryBytes }) => `${cpus} cores, ${size(memoryBytes)}`));
  return [
    { name: "NUMA nodes", status: "ok", need: "optional", found: each, purpose: "memory near its cores is faster" },
  ];
}

async function sharing(probe: Probe): Promise<Finding[]> {
  const findings: Finding[] = [];
  const sockets = await probe.unixSockets();
  findings.push({
    name: "unix sockets",
    status: sockets ? "ok" : "limited",
    need: "recommended",
    found: sockets ? "yes" : "no",
    purpose: "messages between processes of one host",
    remedy: sockets
      ? undefined
      : "set TMPDIR to a folder on a local file system with a short path; TCP is used until then",
  });
  if (probe.platform === "linux") {
    const space = await probe.writableSpace("/dev/shm");
    const ok = space !== undefined && space.totalBytes >= 256 * mib;
    findings.push({
      name: "/dev/shm",
      status: space === undefined ? "missing" : ok ? "ok" : "limited",
      need: "recommended",
      found: space === undefined ? "not writable" : `${size(space.totalBytes)}, ${size(space.freeBytes)} free`,
      purpose: "large arrays between processes of one host, without copying them through sockets",
      remedy: ok ? undefined : "docker run --shm-size=2g …, or 'mount -o remount,size=2g /dev/shm' as root",
    });
  }
  if (probe.platform !== "linux") return findings;
  const mapped = probe.mappedMemory();
  findings.push({
    name: "mapped memory",
    status: mapped ? "ok" : "limited",
    need: "recommended",
    found: mapped ? "koffi loads" : "koffi does not load; sockets carry large arrays",
    purpose: "reads shared memory in place; about three times faster from 16 MiB on",
    remedy: mapped ? undefined : "npm install koffi (it has binaries for glibc; other systems keep to sockets)",
  });
  return findings;
}

async function natsServer(probe: Probe, advise: (remedies: Remedies) => string): Promise<Finding[]> {
  const purpose = "the control plane of runs on many machines";
  const install = advise({ debian: "apt-get install nats-server", macos: "brew install nats-server" });
  const environment = probe.env["TREADLE_NATS_URL"] || undefined;
  let named = environment;
  let unreadable: Finding[] = [];
  try {
    named ??= await probe.clusterUrl();
  } catch (error) {
    const finding = { name: "NATS of the cluster", need: "recommended", purpose: meetingPlace } as const;
    unreadable = [{ ...finding, status: "missing", found: "no folder of a cluster", remedy: (error as Error).message }];
  }
  const version = firstLine(await probe.output("nats-server", "--version"))?.replace(/^nats-server:\s*/, "");
  const program: Finding = {
    name: "nats-server",
    status: version === undefined ? "missing" : "ok",
    need: "optional",
    found: version ?? "not found",
    purpose,
    remedy: version === undefined ? `${install}; or set TREADLE_NATS_URL to one elsewhere` : undefined,
  };
  if (unreadable.length > 0) return [program, ...unreadable];
  // One that nobody named is found where servers listen unless told otherwise, and may admit strangers.
  if (named === undefined && (await probe.natsInfo(usualServer)) === undefined) return [program];
  const where =
    named === undefined ? `at ${usualServer}` : environment === undefined ? "of the cluster" : "at TREADLE_NATS_URL";
  const server = await natsAt(probe, where, named);
  // One that runs elsewhere makes a program here needless.
  return server.status === "ok" && version === undefined ? [server] : [program, server];
}

const usualServer = "127.0.0.1:4222";
const meetingPlace = "runs and nodes meet there";

/**
 * Servers: whether one answers, what it is, whom each admits, and whether they take these credentials. `named`: their addresses;
 * one that nobody named is only looked at, since it is told no secrets, and nothing is kept there.
 */
async function natsAt(probe: Probe, where: string, named: string | undefined): Promise<Finding> {
  const finding = {
    name: `NATS ${where}`,
    need: "recommended",
    purpose: meetingPlace,
  } as const;
  const urls = (named ?? usualServer).split(",");
  const infos = (await Promise.all(urls.map((url) => probe.natsInfo(url)))).filter((each) => each !== undefined);
  const problem = named === undefined ? undefined : await probe.natsProblem(named);
  const [info] = infos;
  if (info === undefined) {
    const remedy =
      problem ??
      "start it with 'nats-server -c .treadle/cluster/nats.conf' (after 'treadle cluster init'), or correct TREADLE_NATS_URL";
    return { ...finding, status: "missing", found: "no server answers", remedy };
  }
  const open = infos.filter(({ isOpen }) => isOpen).map(({ host }) => openServer(host));
  const found = `${info.version}, ${info.jetStream ? "with" : "without"} JetStream${info.cluster ? `, of cluster '${info.cluster}'` : ""}`;
  const isPlain = infos.some(({ isEncrypted }) => !isEncrypted) && urls.some((url) => !isServerOnLoopback(url));
  const remedies = new Set([problem, ...open, isPlain ? readOnTheWay : undefined].filter((each) => each !== undefined));
  return {
    ...finding,
    status: remedies.size === 0 ? "ok" : "limited",
    found,
    remedy: [...remedies].join("; ") || undefined,
  };
}

/** `host`: where it listens. */
const openServer = (host: string): string =>
  isLoopback(host)
    ? "every user of this machine may connect, and can start workers on agents without keys; let 'treadle cluster init' write its configuration"
    : `it listens on '${host}', and anyone who reaches it may connect; agents and runners without keys refuse it; let 'treadle cluster init' write its configuration, or start it with '-a 127.0.0.1'`;

async function accelerators(probe: Probe): Promise<Finding[]> {
  const purpose = "engines that run large models (SGLang, vLLM, PyTorch)";
  const vendors = { cuda: "NVIDIA GPUs", rocm: "AMD GPUs" };
  const listed = await Promise.all(
    Object.entries(vendors).map(async ([kind, name]): Promise<Finding[]> => {
      const found = await list(probe, acceleratorTools[kind as keyof typeof vendors]);
      if (found.length === 0) return [];
      const models = tally(found.map(({ name: model = "GPU", memoryBytes }) => `${model}, ${size(memoryBytes)}`));
      return [{ name, status: "ok", need: "optional", found: models, purpose }];
    }),
  );
  if (listed.flat().length > 0) return listed.flat();
  const none = "nothing to do for embedded engines, which run on the processor; else install the vendor's driver";
  return [{ name: "accelerators", status: "missing", need: "optional", found: "none found", purpose, remedy: none }];
}

/** What the first tool that lists something lists. */
async function list(probe: Probe, tools: readonly AcceleratorTool[]): Promise<ReturnType<AcceleratorTool["parse"]>> {
  for (const { command, parse } of tools) {
    try {
      const found = parse((await probe.output(...command)) ?? "");
      if (found.length > 0) return found;
    } catch {
      // not what this tool prints when it finds something
    }
  }
  return [];
}

/** What `python/treadle_torch` needs, and from which version on. */
const torchPackages = {
  torch: "2.11",
  transformers: "5.17",
  safetensors: "0.4",
  numpy: "1.26",
  grpcio: "1.62",
  protobuf: "4.25",
};

/** Their versions, asked of what is installed: to import PyTorch takes seconds. */
const versionsScript = `import importlib.metadata as m
for name in ${JSON.stringify([...Object.keys(torchPackages), "treadle"])}:
    try: print(name, m.version(name))
    except m.PackageNotFoundError: pass`;

async function python(probe: Probe): Promise<Finding[]> {
  const interpreter = probe.env["TREADLE_PYTHON"] ?? "python3";
  const [engines, actions] = await Promise.all([import("@treadle/engines"), import("@treadle/actions")]);
  const servers = engines.installableServers();
  const [answer, ...found] = await Promise.all([
    probe.output(interpreter, "-c", versionsScript),
    ...servers.map((server) => inferenceServer(probe, server, interpreter)),
  ]);
  const versions =
    answer === undefined
      ? undefined
      : new Map(answer.split("\n").map((line) => line.trim().split(" ") as [string, string]));
  return [
    pythonEngine(interpreter, versions, engines.torchPackageFolder()),
    ...found,
    pythonClient(interpreter, versions, actions.clientPackageFolder()),
  ];
}

type Versions = ReadonlyMap<string, string>;

/** `versions`: of packages by name; undefined where the interpreter cannot be run. `folder`: of the Python package. */
function pythonEngine(python: string, found: Versions | undefined, folder: string): Finding {
  const versions: Versions = found ?? new Map();
  const all = Object.entries(torchPackages);
  const missing = all.flatMap(([name]) => (versions.has(name) ? [] : [name]));
  const old = all.filter(([name, least]) => versions.has(name) && !isAtLeast(versions.get(name) as string, least));
  const isFound = missing.length + old.length === 0;
  const lacks = [
    ...(missing.length > 0 ? [`lacks ${missing.join(", ")}`] : []),
    ...old.map(([name, least]) => `has ${name} ${versions.get(name)}, older than ${least}`),
  ];
  return {
    name: "PyTorch engine",
    status: isFound ? "ok" : "missing",
    need: "optional",
    found: isFound
      ? `torch ${versions.get("torch")}, transformers ${versions.get("transformers")}`
      : found === undefined
        ? `'${python}' cannot be run`
        : `'${python}' ${lacks.join(" and ")}`,
    purpose: "runs Hugging Face models (engine.kind: torch)",
    remedy: isFound
      ? undefined
      : `python3 -m venv torch && torch/bin/pip install "${folder}", and TREADLE_PYTHON=torch/bin/python`,
  };
}

/** Looked for where the remedy puts it, and in the environment that engines on PyTorch use. */
async function inferenceServer(
  { output }: Probe,
  { kind, name, distributions, install, python }: InstallableServer,
  interpreter: string,
): Promise<Finding> {
  const script = `import importlib.metadata as m
for name in ${JSON.stringify(distributions)}:
    try: print("version", m.version(name))
    except m.PackageNotFoundError: pass`;
  const finding = {
    name,
    need: "optional",
    purpose: `generates for models that PyTorch trains (engine.kind: ${kind})`,
  } as const;
  for (const each of [python, interpreter]) {
    const version = /^version (\S+)$/m.exec((await output(each, "-c", script)) ?? "")?.[1];
    if (version !== undefined)
      return { ...finding, status: "ok", found: `${version}, for engine.launch.python: ${each}` };
  }
  const remedy = `${install}, and engine.launch.python: ${python}; or give engine.url of one that runs`;
  return { ...finding, status: "missing", found: `neither '${python}' nor '${interpreter}' has it`, remedy };
}

function pythonClient(python: string, versions: Versions | undefined, folder: string): Finding {
  const version = versions?.get("treadle");
  const lacks = versions === undefined ? "cannot be run" : "lacks treadle";
  return {
    name: "Python client",
    status: version === undefined ? "missing" : "ok",
    need: "optional",
    found: version === undefined ? `'${python}' ${lacks}` : `treadle ${version}`,
    purpose: "asks an action service from Python",
    remedy: version === undefined ? `python3 -m pip install "${folder}"` : undefined,
  };
}

function isAtLeast(version: string, least: string): boolean {
  const [major = 0, minor = 0] = version.split(".").map((part) => Number.parseInt(part, 10));
  const [leastMajor = 0, leastMinor = 0] = least.split(".").map(Number);
  return major > leastMajor || (major === leastMajor && minor >= leastMinor);
}

async function sandboxes(probe: Probe, advise: (remedies: Remedies) => string): Promise<Finding[]> {
  const purpose = "isolates and sizes the tools that agents call";
  const [lacks, lacksForDisks, docker] = await Promise.all([
    probe.cgroupDriverLacks(),
    probe.diskImagesLack(),
    probe.output("docker", "version", "--format", "{{.Server.Version}}"),
  ]);
  const findings: Finding[] = [];
  if (probe.platform === "linux") {
    const [why, remedy] = /^(.*?)(?:; ([^;]*))?$/s.exec(lacks ?? lacksForDisks ?? "")?.slice(1) ?? [];
    const unlimited = lacksForDisks === undefined ? "" : `, without a limit on files: ${why}`;
    findings.push({
      name: "driver 'cgroup'",
      status: lacks === undefined ? "ok" : "missing",
      need: "optional",
      found: lacks === undefined ? `control groups of version ${cgroupVersion(probe)}${unlimited}` : (why ?? lacks),
      purpose,
      remedy:
        lacks === undefined
          ? remedy
          : (remedy ?? "run the action service or the node agent as root, or use the driver 'docker'"),
    });
  }
  const version = firstLine(docker);
  findings.push({
    name: "Docker",
    status: version === undefined ? "missing" : "ok",
    need: "optional",
    found: version === undefined ? "no engine answers" : `engine ${version}`,
    purpose,
    remedy:
      version === undefined
        ? advise({
            debian: "apt-get install docker.io, and add yourself to the group 'docker'",
            macos: "brew install --cask docker, and start it",
          })
        : undefined,
  });
  return findings;
}

const cgroupVersion = ({ exists }: Probe): number => (exists("/sys/fs/cgroup/cgroup.controllers") ? 2 : 1);

/** `2 × H200, 141 GB` for repeated names */
function tally(names: readonly string[]): string {
  const counts = new Map<string, number>();
  for (const name of names) counts.set(name.trim(), (counts.get(name.trim()) ?? 0) + 1);
  return [...counts].map(([name, count]) => `${count} × ${name}`).join("; ");
}

const firstLine = (text: string | undefined): string | undefined => text?.split("\n")[0]?.trim() || undefined;

function size(bytes: number): string {
  return bytes >= gib ? `${(bytes / gib).toFixed(1)} GiB` : `${Math.round(bytes / mib)} MiB`;
}

export function renderDoctor(findings: readonly Finding[], options: { colour: boolean; columns?: number }): string {
  const c = pc.createColors(options.colour);
  const columns = Math.max(60, Math.min(options.columns ?? process.stdout.columns ?? 100, 110));
  const nameWidth = Math.max(...findings.map(({ name }) => singleLine(name).length)) + 2;
  const lines: string[] = [];
  for (const { status, need, purpose, ...said } of findings) {
    // Servers and programs have worded some of it.
    const [name, found] = [singleLine(said.name), printableLines(said.found)];
    const remedy = said.remedy === undefined ? undefined : printableLines(said.remedy);
    const mark =
      status === "ok"
        ? c.green("✓")
        : need === "required"
          ? c.red("✗")
          : status === "limited"
            ? c.yellow("!")
            : c.dim("–");
    const label = padCells(name, nameWidth);
    const room = columns - nameWidth - 4;
    wrap(found, room).forEach((line, i) => {
      lines.push(`${i === 0 ? mark : " "} ${i === 0 ? c.bold(label) : " ".repeat(nameWidth)}${line}`);
    });
    if (remedy === undefined) continue;
    const indent = " ".repeat(nameWidth + 2);
    for (const line of wrap(`${need}: ${purpose}`, room)) lines.push(indent + c.dim(line));
    wrap(remedy, room - 2).forEach((line, i) => {
      lines.push(`${indent}${i === 0 ? c.cyan("→ ") : "  "}${line}`);
    });
  }
  const blocking = findings.filter(({ need, status }) => need === "required" && status !== "ok");
  const slower = findings.filter(({ need, status }) => need === "recommended" && status !== "ok");
  lines.push("", verdict(blocking, slower, c));
  return lines.join("\n");
}

function verdict(
  blocking: readonly Finding[],
  slower: readonly Finding[],
  c: ReturnType<typeof pc.createColors>,
): string {
  const names = (findings: readonly Finding[]) => findings.map(({ name }) => singleLine(name)).join(", ");
  if (blocking.length > 0) return c.red(`nothing can run here before this is mended: ${names(blocking)}`);
  if (slower.length > 0) return c.yellow(`embedded workflows run here; slower than they could for: ${names(slower)}`);
  return c.green("embedded workflows run here at full speed");
}

const run = promisify(execFile);

/** `cluster`: the folder whose servers are asked, with the key that this machine has there. */
export const systemProbe = (cluster?: string): Probe => ({
  nodeVersion: process.version,
  platform: platform(),
  cores: availableParallelism(),
  totalBytes: process.constrainedMemory() > 0 ? Math.min(totalmem(), process.constrainedMemory()) : totalmem(),
  freeBytes: freemem(),
  async output(command, ...argv) {
    try {
      const { stdout, stderr } = await run(command, argv, { timeout: 3_000, killSignal: "SIGKILL" });
      return stdout.trim() === "" ? stderr : stdout;
    } catch {
      return undefined;
    }
  },
  exists: existsSync,
  read(path) {
    try {
      return readFileSync(path, "utf8");
    } catch {
      return undefined;
    }
  },
  cgroupDriverLacks: async () => (await import("@treadle/actions")).cgroupDriverLacks(),
  diskImagesLack: async () => (await import("@treadle/actions")).diskImagesLack(),
  async writableSpace(folder) {
    const file = join(folder, `treadle-doctor-${process.pid}`);
    try {
      await access(folder, constants.W_OK);
      await writeFile(file, "x");
      const { bsize, bavail, blocks } = await statfs(folder);
      return { freeBytes: bsize * bavail, totalBytes: bsize * blocks };
    } catch {
      return undefined;
    } finally {
      await rm(file, { force: true }).catch(() => {});
    }
  },
  async unixSockets() {
    const folder = await mkdtemp(join(tmpdir(), "treadle-doctor-"));
    const server = createServer();
    try {
      return await new Promise<boolean>((resolve) => {
        server.once("error", () => resolve(false));
        server.listen(join(folder, "s"), () => resolve(true));
      });
    } finally {
      server.close();
      await rm(folder, { recursive: true, force: true });
    }
  },
  numa: numaNodes(),
  env: process.env,
  natsInfo,
  natsProblem: (url) => natsProblem(url, cluster),
  clusterUrl: async () => {
    if (cluster === undefined) return undefined;
    const { url } = await clusterValues(cluster, { role: "runner" });
    return [url].flat().join(",");
  },
  mappedMemory() {
    try {
      // koffi belongs to the transport, so it is looked for from there.
      const koffi = createRequire(import.meta.resolve("@treadle/transport"))("koffi") as {
        load(library: string): unknown;
      };
      koffi.load("libc.so.6");
      return true;
    } catch {
      return false;
    }
  },
});
