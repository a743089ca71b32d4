import { execFile } from "node:child_process";
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { promisify } from "node:util";
import { LinksConfig } from "@treadle/contracts";
import { ServerSetup, serverConfigs } from "@treadle/transport";
import { expect, test } from "vitest";
import { parse } from "yaml";
import { z } from "zod";
import { projectRoot } from "../support/project.ts";

const read = (path: string): string => readFileSync(join(projectRoot, path), "utf8");

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

test("the servers of Kubernetes bear as much of their clients as those that 'treadle cluster init' configures", () => {
  const setup = ServerSetup.parse({ servers: ["127.0.0.1:4222"] });
  const [written = ""] = serverConfigs(setup, "accounts.conf");
  const limits = Object.fromEntries(
    [...written.matchAll(/^(max_\w+): (\d+)$/gm)].map(([, name = "", value]) => [name, Number(value)]),
  );
  expect(limits).toEqual({ max_connections: 8192, max_payload: 1_048_576, max_subscriptions: 65_536 });
  const { config } = z
    .looseObject({ config: z.looseObject({ merge: z.looseObject({}) }) })
    .parse(parse(read("deploy/kubernetes/nats-values.yaml")));
  expect(config.merge).toMatchObject(limits);
});

/** As `links` of the configuration has it, of the settings and flags in a text. */
const linksIn = (text: string): unknown => ({
  tls: Object.fromEntries(
    [...text.matchAll(/(?:--link-|links\.tls\.)(ca|cert|key)[= ]([^\s',}]+)/g)].map(([, name = "", file]) => [
      name,
      file,
    ]),
  ),
});

test("every deployment between machines says how its links are encrypted, by keys that the configuration has", () => {
  for (const name of ["docker", "kubernetes", "systemd", "slurm", "local"]) {
    const text = read(`deploy/${name}/README.md`);
    for (const said of ["--link-ca", "--link-cert", "--link-key", "cluster.links.tls"])
      expect(text.replaceAll("\\.", "."), name).toContain(said);
    expect(text, name).toContain("(../../docs/guides/many-machines.md#encrypt-links)");
  }
  const kubernetes = read("deploy/kubernetes/README.md").replaceAll("\\.", ".");
  const { node, runner } = z
    .object({ services: z.record(z.string(), z.looseObject({ environment: z.record(z.string(), z.string()) })) })
    .parse(parse(read("deploy/docker/links-tls.yaml"))).services;
  const flags = [node?.environment["NODE_FLAGS"] ?? "", runner?.environment["RUN_FLAGS"] ?? ""];
  const files = (at: string) => ({ ca: `${at}/ca.crt`, cert: `${at}/link.crt`, key: `${at}/link.key` });
  for (const text of flags) expect(LinksConfig.parse(linksIn(text)).tls).toEqual(files("/keys/links"));
  for (const text of [kubernetes.replace(/links\.tls\.\w+=\S+/g, ""), kubernetes.replace(/--link-\w+=[^,}]+/g, "")])
    expect(LinksConfig.parse(linksIn(text)).tls).toEqual(files("/etc/treadle"));
  const compose = read("deploy/docker/compose.yaml");
  for (const variable of ["$$NODE_FLAGS", "$$RUN_FLAGS"]) expect(compose).toContain(variable);
});

test("the shipped unit does not restart an agent whose name is another's", () => {
  const code = /nameTakenCode = (\d+);/.exec(read("packages/cli/src/main.ts"))?.[1];
  expect(read("deploy/systemd/treadle-node.service")).toContain(`\nRestartPreventExitStatus=${code}\n`);
});

test("no deployment has a password in an argument or a variable, and nodes have no runner's key", () => {
  const folders = ["docker", "kubernetes", "kubernetes/templates", "local", "slurm", "systemd"];
  for (const name of folders.flatMap((each) =>
    readdirSync(join(projectRoot, "deploy", each), { withFileTypes: true }).flatMap((entry) =>
      entry.isFile() ? `${each}/${entry.name}` : [],
    ),
  )) {
    if (name.endsWith(".md")) continue;
    const text = read(`deploy/${name}`);
    expect(text, name).not.toMatch(/--pass\b|--user\b|PASSWORD|password/);
    expect(text, name).not.toMatch(/nats-server -js(?! -a 127)/);
  }
  const { services } = Compose.parse(parse(read("deploy/docker/compose.yaml"), { merge: true }));
  expect(services["node"]?.volumes.join()).not.toContain("runner.nk");
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

const execute = promisify(execFile);
const scripts = ["deploy/local/up.sh", "deploy/slurm/treadle.sbatch"];
const units = [
  "treadle-actions.service",
  "treadle-actions-host.service",
  "treadle-node.service",
  "treadle@.service",
].map((name) => `deploy/systemd/${name}`);

test.each(scripts)("bash can read '%s'", async (path) => {
  await execute("bash", ["-n", join(projectRoot, path)]);
});

test("the node's unit lets the agent ask for network cards, by which it is named", () => {
  expect(read("deploy/systemd/treadle-node.service")).toMatch(/^RestrictAddressFamilies=.*\bAF_NETLINK\b/m);
});

test.each(units)("'%s' lets what it starts make groups below its own", (path) => {
  expect(read(path)).toMatch(/^Delegate=yes$/m);
  expect(read(path)).not.toMatch(/^ProtectControlGroups=yes$/m);
});

test("on Kubernetes NATS servers know one another by a password, and only they and Treadle's pods reach them", () => {
  expect(read("deploy/kubernetes/nats-values.yaml")).toMatch(/routeURLs: \{ user: server \}/);
  expect(read("deploy/kubernetes/README.md")).toContain("--set-file config.cluster.routeURLs.password=");
  const policy = read("deploy/kubernetes/templates/network-policy.yaml");
  expect(policy.split("---\n")[1]).toMatch(
    /matchLabels: \{ app\.kubernetes\.io\/name: nats \}\n {2}policyTypes: \[Ingress\]/,
  );
});

// systemd's own check, where systemd is: of each unit that it knows all that stands there.
test.skipIf(!existsSync("/usr/bin/systemd-analyze"))("systemd finds nothing wrong with the units", async () => {
  const paths = units.map((path) => join(projectRoot, path));
  const said = await execute("systemd-analyze", ["verify", "--man=no", ...paths]).then(
    ({ stdout, stderr }) => stdout + stderr,
    (error: { stdout: string; stderr: string }) => error.stdout + error.stderr,
  );
  const ours = said.split("\n").filter((line) => line.includes("treadle"));
  // The checkout that they name is on no machine of a test.
  expect(ours.filter((line) => !/is not executable: No such file/.test(line))).toEqual([]);
});
