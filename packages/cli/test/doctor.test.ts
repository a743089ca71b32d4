import { expect, it } from "vitest";
import { examineMachine, type Finding, type Probe, renderDoctor, systemProbe } from "../src/doctor.ts";

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
  unixSockets: async () => false,
  mappedMemory: () => false,
};
const answers: Record<string, string> = {
  "nats-server": "nats-server: v2.10.4",
  "nvidia-smi": "NVIDIA H200, 143771 MiB\nNVIDIA H200, 143771 MiB\n",
  python3: "torch 2.4.0 grpc 1.60.0\n",
  bwrap: "bubblewrap 0.8.0\n",
  docker: "26.1.0\n",
};
const rich: Probe = {
  nodeVersion: "v22.4.0",
  platform: "linux",
  cores: 16,
  totalBytes: 128 * 1024 ** 3,
  freeBytes: 100 * 1024 ** 3,
  output: async (command) => answers[command],
  exists: () => true,
  read: (path) => (path.endsWith("cgroup.controllers") ? "cpuset cpu memory\n" : undefined),
  writableSpace: async () => ({ freeBytes: 1024 ** 3, totalBytes: 2 * 1024 ** 3 }),
  unixSockets: async () => true,
  mappedMemory: () => true,
};
const named = (findings: readonly Finding[], name: string) => findings.find((finding) => finding.name === name);

it("finds nothing to mend on a machine that has everything", async () => {
  const findings = await examineMachine(rich);
  expect(findings.filter(({ status, remedy }) => status !== "ok" || remedy !== undefined)).toEqual([]);
  expect(named(findings, "NVIDIA GPUs")?.found).toBe("2 × NVIDIA H200, 143771 MiB");
  expect(named(findings, "nats-server")?.found).toBe("v2.10.4");
  expect(named(findings, "cgroups")?.found).toBe("v2 (cpuset cpu memory)");
  expect(renderDoctor(findings, { colour: false })).toContain("run here at full speed");
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

it("advises with the package manager of the machine, and asks macOS for nothing that only Linux has", async () => {
  const findings = await examineMachine({ ...bare, platform: "darwin" });
  expect(named(findings, "nats-server")?.remedy).toBe("brew install nats-server");
  for (const name of ["/dev/shm", "cgroups", "bubblewrap"]) expect(named(findings, name)).toBeUndefined();
});

it("examines this machine without failing", async () => {
  const findings = await examineMachine({ ...systemProbe, output: async () => undefined });
  expect(named(findings, "Node.js")).toMatchObject({ status: "ok", found: process.version });
});
