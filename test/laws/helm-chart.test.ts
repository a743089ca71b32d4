/** What the chart of `deploy/kubernetes` becomes, by Helm itself, held against the schemas of Kubernetes' own API. */
import { execFile } from "node:child_process";
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { DaemonSet } from "kubernetes-models/apps/v1";
import { Job } from "kubernetes-models/batch/v1";
import { NetworkPolicy } from "kubernetes-models/networking.k8s.io/v1";
import { PersistentVolumeClaim, ServiceAccount } from "kubernetes-models/v1";
import { describe, expect, onTestFinished, test } from "vitest";
import { parse, parseAllDocuments, stringify } from "yaml";
import { z } from "zod";
import { loadProgram } from "../../packages/cli/src/program.ts";
import { findHelm } from "../support/helm.ts";
import { projectRoot } from "../support/project.ts";

const chart = join(projectRoot, "deploy/kubernetes");
const read = (name: string): string => readFileSync(join(chart, name), "utf8");
const templates = readdirSync(join(chart, "templates"));

const Values = z.record(z.string(), z.unknown());
const leaves = (value: unknown, path: string): string[] => {
  const inner = Values.safeParse(value).data;
  if (inner === undefined || Object.keys(inner).length === 0) return [path];
  return Object.entries(inner).flatMap(([key, each]) => leaves(each, path === "" ? key : `${path}.${key}`));
};

test("the chart reads every value that it has, and has every value that it reads", () => {
  const known = leaves(parse(read("values.yaml")), "");
  const asked = new Set(
    templates.flatMap((name) => [...read(`templates/${name}`).matchAll(/\.Values\.([\w.]+)/g)].map(([, path]) => path)),
  );
  for (const path of asked) expect(known.some((each) => `${each}.`.startsWith(`${path}.`))).toBe(true);
  expect(known.filter((path) => ![...asked].some((each) => `${path}.`.startsWith(`${each}.`)))).toEqual([]);
});

test("the image is the packages' version", () => {
  const { version } = z
    .object({ version: z.string() })
    .parse(JSON.parse(readFileSync(join(projectRoot, "packages/cli/package.json"), "utf8")));
  expect(parse(read("Chart.yaml"))).toMatchObject({ appVersion: version });
});

test("the values of NATS's chart are YAML", () => {
  expect(parseAllDocuments(read("nats-values.yaml")).flatMap(({ errors }) => errors)).toEqual([]);
});

const helm = await findHelm();
const execute = promisify(execFile);
/** One that is built from its sources takes itself for an old one. */
const kubeVersion = "1.30.0";

const Container = z.looseObject({
  image: z.string(),
  args: z.array(z.string()),
  securityContext: z.looseObject({}),
  env: z.array(z.looseObject({ name: z.string() })).default([]),
});
const Pod = z.looseObject({ securityContext: z.looseObject({}), containers: z.array(Container).length(1) });
const Manifest = z.looseObject({
  apiVersion: z.string(),
  kind: z.string(),
  metadata: z.looseObject({ name: z.string().max(63), labels: z.record(z.string(), z.string()) }),
  spec: z.looseObject({ template: z.looseObject({ spec: Pod }).optional() }).optional(),
});
type Manifest = z.infer<typeof Manifest>;

const models: Readonly<Record<string, (manifest: Manifest) => { validate(): void }>> = {
  DaemonSet: (manifest) => new DaemonSet(manifest as never),
  Job: (manifest) => new Job(manifest as never),
  NetworkPolicy: (manifest) => new NetworkPolicy(manifest as never),
  PersistentVolumeClaim: (manifest) => new PersistentVolumeClaim(manifest as never),
  ServiceAccount: (manifest) => new ServiceAccount(manifest as never),
};

/** Rejects with what Helm says of values that it refuses. */
async function render(values: object = {}, release = "treadle"): Promise<Manifest[]> {
  const folder = mkdtempSync(join(tmpdir(), "treadle-chart-"));
  onTestFinished(() => rmSync(folder, { recursive: true, force: true }));
  const file = join(folder, "values.yaml");
  writeFileSync(file, stringify(values));
  const flags = ["--namespace", "loom", "--kube-version", kubeVersion, "--values", file];
  const { stdout } = await execute(helm as string, ["template", release, chart, ...flags]);
  return parseAllDocuments(stdout).map((document) => {
    expect(document.errors).toEqual([]);
    return Manifest.parse(document.toJS());
  });
}

const podOf = (manifests: readonly Manifest[], kind: string): z.infer<typeof Pod> => {
  const pod = manifests.find((each) => each.kind === kind)?.spec?.template?.spec;
  expect(pod, kind).toBeDefined();
  return pod as z.infer<typeof Pod>;
};
const argsOf = (manifests: readonly Manifest[], kind: string): readonly string[] =>
  podOf(manifests, kind).containers[0]?.args ?? [];

/** Everything that can be turned on, and everything that can be turned off. */
const everything = {
  image: { repository: "registry.example:5000/treadle", tag: "2.0.0" },
  imagePullSecrets: [{ name: "pull" }],
  nodes: {
    nodeSelector: { pool: "gpu" },
    tolerations: [{ key: "gpu", operator: "Exists" }],
    flags: ["--labels=zone=a"],
  },
  run: {
    name: "second",
    set: { "placement.mode": "spatial", steps: 100_000_000, "placement.components": { rollout: "0-3" } },
    nodeSelector: { pool: "cpu" },
    tolerations: [{ operator: "Exists" }],
  },
  storage: { className: "fast", size: "1Ti" },
  metrics: { enabled: true, port: 9000 },
};
const nothing = { run: { enabled: false }, networkPolicy: { enabled: false } };

describe.skipIf(helm === undefined)("the chart, rendered", () => {
  test("passes Helm's own lint, strictly", async () => {
    const { stdout } = await execute(helm as string, ["lint", "--strict", "--kube-version", kubeVersion, chart]);
    expect(stdout).toContain("0 chart(s) failed");
  });

  test.each([
    ["as it is", {}, ["DaemonSet", "Job", "NetworkPolicy", "NetworkPolicy", "PersistentVolumeClaim", "ServiceAccount"]],
    [
      "with everything",
      everything,
      ["DaemonSet", "Job", "NetworkPolicy", "NetworkPolicy", "PersistentVolumeClaim", "ServiceAccount"],
    ],
    [
      "with a claim that is there",
      { storage: { existingClaim: "mine" } },
      ["DaemonSet", "Job", "NetworkPolicy", "NetworkPolicy", "ServiceAccount"],
    ],
    ["with nothing", nothing, ["DaemonSet", "ServiceAccount"]],
  ])("%s it is valid by the schema of each kind", async (_, values, kinds) => {
    const manifests = await render(values);
    expect(manifests.map(({ kind }) => kind).sort()).toEqual(kinds);
    for (const manifest of manifests) {
      const model = models[manifest.kind];
      expect(() => model?.(manifest).validate(), manifest.kind).not.toThrow();
      if (manifest.spec === undefined) continue;
      expect(() => model?.({ ...manifest, spec: "nonsense" as never }).validate(), manifest.kind).toThrow();
    }
  });

  test("no pod has more rights than it needs, and agents have no runner's key", async () => {
    const manifests = await render(everything);
    for (const kind of ["DaemonSet", "Job"]) {
      const pod = podOf(manifests, kind);
      expect(pod).toMatchObject({
        automountServiceAccountToken: false,
        securityContext: { runAsNonRoot: true, seccompProfile: { type: "RuntimeDefault" } },
      });
      expect(pod.containers[0]?.securityContext).toEqual({
        allowPrivilegeEscalation: false,
        readOnlyRootFilesystem: true,
        capabilities: { drop: ["ALL"] },
      });
    }
    expect(JSON.stringify(podOf(manifests, "DaemonSet"))).not.toContain("treadle-runner");
  });

  test("what pods are told to run are commands and options that exist", async () => {
    const program = await loadProgram();
    for (const values of [{}, everything, { run: { resume: "20260101-000000-x-0001" } }]) {
      const manifests = await render(values);
      for (const args of [argsOf(manifests, "DaemonSet"), argsOf(manifests, "Job")]) {
        const [name, ...rest] = args;
        const command = program.commands.find((each) => each.name() === name);
        const { operands, unknown } = command?.parseOptions([...rest]) ?? { operands: [], unknown: ["no command"] };
        expect(unknown).toEqual([]);
        expect(operands).toHaveLength(name === "node" ? 0 : 1);
      }
    }
  });

  test("values reach the pods: the image, settings of a run, flags of agents, metrics with their token", async () => {
    const manifests = await render(everything);
    expect(podOf(manifests, "Job").containers[0]?.image).toBe("registry.example:5000/treadle:2.0.0");
    expect(argsOf(manifests, "Job")).toEqual(
      expect.arrayContaining([
        "--set=placement.mode=spatial",
        "--set=steps=100000000",
        '--set=placement.components={"rollout":"0-3"}',
      ]),
    );
    expect(argsOf(manifests, "DaemonSet")).toEqual(
      expect.arrayContaining(["--labels=zone=a", "--metrics=0.0.0.0:9000", "--replicas=3"]),
    );
    const { env } = podOf(manifests, "DaemonSet").containers[0] ?? { env: [] };
    expect(env.map(({ name }) => name)).toContain("TREADLE_METRICS_TOKEN");
    expect(argsOf(await render({ run: { resume: "20260101-000000-x-0001" } }), "Job").slice(0, 2)).toEqual([
      "resume",
      "20260101-000000-x-0001",
    ]);
  });

  test("two releases do not meet, however long their names are", async () => {
    const long = `${"loom-".repeat(10)}abc`; // as long as Helm allows
    const [one, other] = await Promise.all([render({}, `${long.slice(0, -1)}d`), render({}, long)]);
    const names = (manifests: readonly Manifest[]) => manifests.map(({ kind, metadata }) => `${kind} ${metadata.name}`);
    expect(names(one).filter((name) => names(other).includes(name))).toEqual([]);
    const policy = one.find(({ kind }) => kind === "NetworkPolicy");
    expect(policy?.spec).toMatchObject({
      podSelector: { matchLabels: { "app.kubernetes.io/instance": `${long.slice(0, -1)}d` } },
    });
  });

  test.each([
    ["a key that nothing reads", { run: { workflw: "x" } }, /workflw/],
    ["a number that is none", { run: { minNodes: "two" } }, /minNodes/],
    ["two servers, which elect nobody", { nats: { replicas: 2 } }, /replicas/],
    ["a name that Kubernetes could not label pods with", { run: { name: "x".repeat(60) } }, /shorter run\.name/],
    ["a flag that is none", { nodes: { flags: ["labels=zone=a"] } }, /flags/],
  ])("%s is refused, by name", async (_, values, named) => {
    await expect(render(values)).rejects.toThrow(named);
  });
});
