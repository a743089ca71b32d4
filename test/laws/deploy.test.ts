import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { DaemonSet } from "kubernetes-models/apps/v1";
import { Job } from "kubernetes-models/batch/v1";
import { NetworkPolicy } from "kubernetes-models/networking.k8s.io/v1";
import { Namespace, PersistentVolumeClaim, ServiceAccount } from "kubernetes-models/v1";
import { expect, test } from "vitest";
import { parse, parseAllDocuments } from "yaml";
import { z } from "zod";
import { projectRoot } from "../support/project.ts";

const folder = join(projectRoot, "deploy/kubernetes");
const read = (path: string): string => readFileSync(join(projectRoot, path), "utf8");

const Manifest = z.looseObject({ apiVersion: z.string(), kind: z.string() });
type Manifest = z.infer<typeof Manifest>;

/** By the schemas of Kubernetes' own API, as `kubernetes-models` carries them. */
const models: Readonly<Record<string, (manifest: Manifest) => { validate(): void }>> = {
  DaemonSet: (manifest) => new DaemonSet(manifest as never),
  Job: (manifest) => new Job(manifest as never),
  NetworkPolicy: (manifest) => new NetworkPolicy(manifest as never),
  Namespace: (manifest) => new Namespace(manifest as never),
  PersistentVolumeClaim: (manifest) => new PersistentVolumeClaim(manifest as never),
  ServiceAccount: (manifest) => new ServiceAccount(manifest as never),
};

const kustomization = parse(read("deploy/kubernetes/kustomization.yaml")) as { resources: string[] };
const manifests = kustomization.resources.flatMap((file) =>
  parseAllDocuments(readFileSync(join(folder, file), "utf8")).map((document) => {
    expect(document.errors).toEqual([]);
    return { file, manifest: Manifest.parse(document.toJS()) };
  }),
);

test("every manifest that is applied is valid by the schema of its kind", () => {
  expect(manifests.length).toBeGreaterThan(4);
  for (const { file, manifest } of manifests) {
    const model = models[manifest.kind];
    expect(model, `${manifest.kind} of ${file}`).toBeDefined();
    expect(() => model?.(manifest).validate(), `${manifest.kind} of ${file}`).not.toThrow();
  }
});

test("a manifest with a field of a wrong type is not valid", () => {
  for (const { manifest } of manifests.filter(({ manifest }) => manifest["spec"] !== undefined)) {
    expect(() => models[manifest.kind]?.({ ...manifest, spec: "nonsense" }).validate(), manifest.kind).toThrow();
  }
});

test("every file of the folder is applied, or is for NATS's chart", () => {
  expect(parseAllDocuments(read("deploy/kubernetes/nats-values.yaml")).flatMap(({ errors }) => errors)).toEqual([]);
  const files = readdirSync(folder).filter((file) => file.endsWith(".yaml"));
  expect([...kustomization.resources, "kustomization.yaml", "nats-values.yaml"].sort()).toEqual(files.sort());
});

const Compose = z.looseObject({
  services: z.record(
    z.string(),
    z.looseObject({
      build: z.looseObject({ context: z.string(), dockerfile: z.string() }).optional(),
      image: z.string().optional(),
      volumes: z.array(z.string()).default([]),
    }),
  ),
  volumes: z.record(z.string(), z.unknown()),
});

test("the compose file names only volumes that it declares and files that exist", () => {
  const compose = Compose.parse(parse(read("deploy/docker/compose.yaml"), { merge: true }));
  for (const [name, { build, image, volumes }] of Object.entries(compose.services)) {
    expect(image ?? build, name).toBeDefined();
    const named = volumes.filter((volume) => !volume.startsWith("./keys/")); // which 'treadle cluster init' makes
    for (const volume of named) expect(Object.keys(compose.volumes)).toContain(volume.split(":")[0]);
    if (build === undefined) continue;
    const context = resolve(projectRoot, "deploy/docker", build.context);
    expect(existsSync(join(context, build.dockerfile)), build.dockerfile).toBe(true);
  }
});

test("the shipped unit does not restart an agent whose name is another's", () => {
  const code = /nameTakenCode = (\d+);/.exec(read("packages/cli/src/main.ts"))?.[1];
  expect(read("deploy/systemd/treadle-node.service")).toContain(`\nRestartPreventExitStatus=${code}\n`);
});

test("no deployment has a password in an argument or a variable, and nodes have no runner's key", () => {
  const folders = ["docker", "kubernetes", "local", "slurm", "systemd"];
  for (const name of folders.flatMap((each) =>
    readdirSync(join(projectRoot, "deploy", each)).map((f) => `${each}/${f}`),
  )) {
    if (name.endsWith(".md")) continue;
    const text = read(`deploy/${name}`);
    expect(text, name).not.toMatch(/--pass\b|--user\b|PASSWORD|password/);
    expect(text, name).not.toMatch(/nats-server -js(?! -a 127)/);
  }
  const { services } = Compose.parse(parse(read("deploy/docker/compose.yaml"), { merge: true }));
  expect(services["node"]?.volumes.join()).not.toContain("runner.nk");
  expect(read("deploy/kubernetes/node-agents.yaml")).not.toContain("runner.nk");
});

test("keys of a deployment get neither into an image nor into git", () => {
  expect(read("deploy/.gitignore").split("\n")).toEqual(expect.arrayContaining(["keys/", "*.nk"]));
  const compose = Compose.parse(parse(read("deploy/docker/compose.yaml"), { merge: true }));
  for (const { build } of Object.values(compose.services)) {
    if (build === undefined) continue;
    const context = resolve(projectRoot, "deploy/docker", build.context);
    const lines = readFileSync(join(context, ".dockerignore"), "utf8").split("\n");
    expect(lines).toEqual(expect.arrayContaining(["**/keys", "**/*.nk", "**/.treadle", "**/runs"]));
    expect(lines.filter((line) => line.startsWith("!"))).toEqual([]);
  }
});
