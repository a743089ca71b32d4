import { existsSync } from "node:fs";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { makeKey } from "@treadle/transport";
import { startNatsServer } from "@treadle/transport/testing";
import { expect, it } from "vitest";
import { initCluster } from "../src/cluster-folder.ts";
import { examineMachine, type Finding, type Probe, renderDoctor, systemProbe } from "../src/doctor.ts";
import { type NatsInfo, natsInfo, natsProblem } from "../src/nats-probe.ts";

const bare: Probe = {
  nodeVersion: "v18.19.0",
  platform: "linux",
  cores: 1,
  totalBytes: 1024 ** 3,
  freeBytes: 1024 ** 2,
  output: async () => undefined,
  exists: () => false,
  read: () => undefined,
  writableSpace: async () => ({ freeBytes: 0, totalBytes: 64 * 1024 ** 2 }),
  diskImagesLack: async () => undefined,
  cgroupDriverLacks: async () => "'bwrap' is not installed; install the package bubblewrap",
  unixSockets: async () => false,
  mappedMemory: () => false,
  numa: [],
  env: {},
  natsInfo: async () => undefined,
  natsProblem: async () => "no NATS server answers",
  clusterUrl: async () => undefined,
};
const answers: Record<string, string> = {
  "nats-server": "nats-server: v2.10.4",
  "nvidia-smi": "0, 143771, 00000000:19:00.0, NVIDIA H200\n1, 143771, 00000000:3B:00.0, NVIDIA H200\n",
  python3:
    "torch 2.13.0+cpu\ntransformers 5.18.0\nsafetensors 0.6.2\nnumpy 2.3.1\ngrpcio 1.84.0\nprotobuf 6.33.0\ntreadle 0.1.0\n",
  "vllm/bin/python": "version 0.32.0\n",
  "sglang/bin/python": "version 0.5.23\n",
  docker: "26.1.0\n",
};
const server: NatsInfo = {
  version: "2.11.3",
  jetStream: true,
  cluster: "treadle",
  isOpen: false,
  isEncrypted: true,
  host: "127.0.0.1",
};
const rich: Probe = {
  nodeVersion: "v22.4.0",
  platform: "linux",
  cores: 16,
  totalBytes: 128 * 1024 ** 3,
  freeBytes: 100 * 1024 ** 3,
  output: async (command) => answers[command],
  exists: () => true,
  read: () => undefined,
  writableSpace: async () => ({ freeBytes: 1024 ** 3, totalBytes: 2 * 1024 ** 3 }),
  cgroupDriverLacks: async () => undefined,
  diskImagesLack: async () => undefined,
  unixSockets: async () => true,
  mappedMemory: () => true,
  numa: [0, 1].map((index) => ({ index, cpus: 8, memoryBytes: 64 * 1024 ** 3 })),
  env: { TREADLE_NATS_URL: "nats://a:4222" },
  natsInfo: async () => server,
  natsProblem: async () => undefined,
  clusterUrl: async () => undefined,
};
const named = (findings: readonly Finding[], name: string) => findings.find((finding) => finding.name === name);

it("finds nothing to mend on a machine that has everything", async () => {
  const findings = await examineMachine(rich);
  expect(findings.filter(({ status, remedy }) => status !== "ok" || remedy !== undefined)).toEqual([]);
  expect(named(findings, "NVIDIA GPUs")?.found).toBe("2 × NVIDIA H200, 140.4 GiB");
  expect(named(findings, "NUMA nodes")?.found).toBe("2 × 8 cores, 64.0 GiB");
  expect(named(findings, "NATS at TREADLE_NATS_URL")?.found).toBe("2.11.3, with JetStream, of cluster 'treadle'");
  expect(named(findings, "nats-server")?.found).toBe("v2.10.4");
  expect(named(findings, "driver 'cgroup'")?.found).toBe("control groups of version 2");
  expect(renderDoctor(findings, { colour: false })).toContain("run here at full speed");
});

it("says of an inference server where it is, or how to get it in an environment of its own", async () => {
  expect(named(await examineMachine(rich), "vLLM")?.found).toBe("0.32.0, for engine.launch.python: vllm/bin/python");
  const output: Probe["output"] = async (command) => (command === "/opt/python" ? "version 0.32.0\n" : undefined);
  const elsewhere = { ...bare, output, env: { TREADLE_PYTHON: "/opt/python" } };
  expect(named(await examineMachine(elsewhere), "vLLM")?.found).toBe("0.32.0, for engine.launch.python: /opt/python");
  expect(named(await examineMachine(bare), "SGLang")).toMatchObject({
    status: "missing",
    remedy: expect.stringMatching(
      /^python3 -m venv sglang && sglang\/bin\/pip install sglang, and engine\.launch\.python/,
    ),
  });
});

it("says that the driver 'cgroup' holds no limit on files where it cannot", async () => {
  const diskImagesLack = async () => "'mkfs.ext4' is not installed; install the package e2fsprogs";
  const finding = named(await examineMachine({ ...rich, diskImagesLack }), "driver 'cgroup'");
  expect(finding).toMatchObject({
    status: "ok",
    found: "control groups of version 2, without a limit on files: 'mkfs.ext4' is not installed",
    remedy: "install the package e2fsprogs",
  });
});

it("names a remedy for everything that is missing, and what stops everything", async () => {
  const findings = await examineMachine(bare);
  for (const finding of findings) {
    expect(finding.status, finding.name).not.toBe("ok");
    expect(finding.remedy, finding.name).toBeTruthy();
  }
  const text = renderDoctor(findings, { colour: false, columns: 80 });
  expect(text).toContain("nothing can run here before this is mended: Node.js");
  expect(text).toContain("→ apt-get install nats-server");
  for (const line of text.split("\n")) expect(line.length).toBeLessThanOrEqual(84);
});

it("says which of PyTorch's packages are missing or too old, of the interpreter that the engine would take", async () => {
  const asked: string[] = [];
  const output: Probe["output"] = async (command) => {
    asked.push(command);
    return command === "/opt/python" ? "torch 1.13.1\nnumpy 2.3.1\ngrpcio 1.84.0\nprotobuf 6.33.0\n" : undefined;
  };
  const findings = await examineMachine({ ...rich, output, env: { TREADLE_PYTHON: "/opt/python" } });
  expect(named(findings, "PyTorch engine")).toMatchObject({
    status: "missing",
    found: "'/opt/python' lacks transformers, safetensors and has torch 1.13.1, older than 2.11",
    remedy: expect.stringMatching(/pip install "(.+treadle_torch)"/),
  });
  expect(named(findings, "Python client")).toMatchObject({ status: "missing", found: "'/opt/python' lacks treadle" });
  const advised = ["PyTorch engine", "Python client"].map(
    (name) => /pip install "(.+)"/.exec(named(findings, name)?.remedy ?? "")?.[1] ?? "",
  );
  expect(advised.filter((folder) => !existsSync(join(folder, "pyproject.toml")))).toEqual([]);
  expect(asked).not.toContain("python3");
});

it("lists AMD's GPUs by whichever of their tools is there", async () => {
  const output =
    (tool: string, text: string): Probe["output"] =>
    async (command) =>
      command === tool ? text : undefined;
  const amd = JSON.stringify({
    gpu_data: [{ gpu: 0, asic: { market_name: "MI300X" }, vram: { size: { value: 196592, unit: "MB" } } }],
  });
  const rocm = JSON.stringify({ card0: { "VRAM Total Memory (B)": "68702699520", "Card series": "MI250X" } });
  const found = async (tool: string, text: string) =>
    named(await examineMachine({ ...bare, output: output(tool, text) }), "AMD GPUs")?.found;
  expect(await found("amd-smi", amd)).toBe("1 × MI300X, 192.0 GiB");
  expect(await found("rocm-smi", rocm)).toBe("1 × MI250X, 64.0 GiB");
  expect(await found("amd-smi", "ERROR: no driver")).toBeUndefined();
});

it("says of the NATS server that the environment names whether it answers, and why it cannot be used", async () => {
  const env = { TREADLE_NATS_URL: "nats://a:4222" };
  const away = named(await examineMachine({ ...bare, env }), "NATS at TREADLE_NATS_URL");
  expect(away).toMatchObject({ status: "missing", found: "no server answers", remedy: "no NATS server answers" });
  const refused = named(
    await examineMachine({ ...rich, natsProblem: async () => "it refuses these credentials" }),
    "NATS at TREADLE_NATS_URL",
  );
  expect(refused).toMatchObject({ status: "limited", remedy: "it refuses these credentials" });
  const plain = async () => ({ ...server, isEncrypted: false });
  const read = named(await examineMachine({ ...rich, natsInfo: plain }), "NATS at TREADLE_NATS_URL");
  expect(read).toMatchObject({ status: "limited", remedy: expect.stringContaining("--tls-cert") });
  const here = { TREADLE_NATS_URL: "nats://127.0.0.1:4222,nats://[::1]:4222" };
  const near = named(await examineMachine({ ...rich, env: here, natsInfo: plain }), "NATS at TREADLE_NATS_URL");
  expect(near?.remedy).toBeUndefined();
});

it("says of each server whom it admits, whatever else is wrong, and logs in at none that nobody named", async () => {
  const infos: Record<string, NatsInfo> = {
    "nats://a:4222": server,
    "nats://b:4222": { ...server, isOpen: true, host: "0.0.0.0" },
    "nats://c:4222": { ...server, isEncrypted: false },
  };
  const env = { TREADLE_NATS_URL: Object.keys(infos).join(",") };
  const natsProblem = async () => "it keeps nothing";
  const three = { ...rich, env, natsInfo: async (url: string) => infos[url], natsProblem };
  const { remedy } = named(await examineMachine(three), "NATS at TREADLE_NATS_URL") ?? {};
  expect(remedy).toMatch(/it keeps nothing; it listens on '0\.0\.0\.0', and anyone.*--tls-cert/s);
  const logIn = async (): Promise<never> => {
    throw new Error("logged in at a server that nobody named");
  };
  const unnamed = { ...rich, env: {}, natsInfo: async () => ({ ...server, isOpen: true }), natsProblem: logIn };
  expect(named(await examineMachine(unnamed), "NATS at 127.0.0.1:4222")?.remedy).toMatch(/every user of this machine/);
});

it("asks a real NATS server what it is", async () => {
  await using server = await startNatsServer();
  expect(await natsInfo("nats://127.0.0.1:1")).toBeUndefined();
  expect(await natsInfo(server.url)).toMatchObject({
    version: expect.stringMatching(/^\d/),
    jetStream: true,
  });
  expect(await natsProblem(server.url)).toBeUndefined();
  await using closed = await startNatsServer({ args: ["--user", "me", "--pass", "secret"] });
  expect(await natsInfo(server.url)).toMatchObject({ isOpen: true, isEncrypted: false });
  expect(await natsInfo(closed.url)).toMatchObject({ jetStream: true, isOpen: false });
  const admits = await examineMachine({ ...rich, natsInfo: () => natsInfo(server.url) });
  expect(named(admits, "NATS at TREADLE_NATS_URL")?.remedy).toMatch(/every user of this machine may connect/);
  expect(await natsProblem(closed.url)).toMatch(/refuses/);
});

it("asks the servers of a cluster's folder, and says whether they take the key that the folder has", async () => {
  const root = await mkdtemp(join(tmpdir(), "treadle-doctor-"));
  try {
    const folder = join(root, "keys");
    await initCluster(folder, { servers: ["127.0.0.1:4222"] }, ["a"]);
    await using server = await startNatsServer({ args: ["-c", join(folder, "nats.conf")] });
    const settings = JSON.parse(await readFile(join(folder, "cluster.json"), "utf8"));
    const [at, ofNobody] = [join(folder, "cluster.json"), join(folder, "runner.nk")];
    await writeFile(at, JSON.stringify({ ...settings, servers: [`127.0.0.1:${server.port}`] }));
    const examined = async () => {
      const probe = { ...systemProbe(folder), env: {}, output: async () => undefined };
      return named(await examineMachine(probe), "NATS of the cluster");
    };
    expect(await examined()).toMatchObject({ status: "ok", found: expect.stringContaining("with JetStream") });
    await writeFile(ofNobody, `${makeKey().seed}\n`);
    expect(await examined()).toMatchObject({ status: "limited", remedy: expect.stringMatching(/refuses/) });
    // A node's machine has no runner's key.
    await rm(ofNobody);
    expect(await examined()).toMatchObject({ status: "ok" });
    await writeFile(join(folder, "node-a.nk"), `${makeKey().seed}\n`);
    expect(await examined()).toMatchObject({ status: "limited", remedy: expect.stringMatching(/refuses/) });
    await server.stop();
    expect(await examined()).toMatchObject({ status: "missing", found: "no server answers" });
    await rm(at);
    expect(await examined()).toMatchObject({
      status: "missing",
      found: "no folder of a cluster",
      remedy: expect.stringMatching(/has no 'cluster\.json'.*treadle cluster init/),
    });
  } finally {
    await rm(root, { recursive: true });
  }
});

it("finds the server of this machine that nobody has named, and says whom it admits", async () => {
  const open = async (url: string) =>
    url === "127.0.0.1:4222" ? { ...server, isOpen: true, host: "0.0.0.0" } : undefined;
  const found = named(await examineMachine({ ...rich, env: {}, natsInfo: open }), "NATS at 127.0.0.1:4222");
  expect(found).toMatchObject({
    status: "limited",
    remedy: expect.stringMatching(/listens on '0\.0\.0\.0', and anyone who reaches it may connect/),
  });
  const none = await examineMachine({ ...rich, env: {}, natsInfo: async () => undefined });
  expect(none.filter(({ name }) => name.startsWith("NATS at"))).toEqual([]);
});

it("advises with the package manager of the machine, and asks macOS for nothing that only Linux has", async () => {
  const findings = await examineMachine({ ...bare, platform: "darwin" });
  expect(named(findings, "nats-server")?.remedy).toContain("brew install nats-server");
  for (const name of ["/dev/shm", "driver 'cgroup'"]) expect(named(findings, name)).toBeUndefined();
});

it("examines this machine without failing", async () => {
  const findings = await examineMachine({ ...systemProbe(), output: async () => undefined });
  expect(named(findings, "Node.js")).toMatchObject({ status: "ok", found: process.version });
});
