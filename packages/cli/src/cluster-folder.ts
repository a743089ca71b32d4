/**
 * The folder by which a cluster's machines find and trust one another: `cluster.json` says where the servers are, `trust`
 * whose keys count, `*.nk` are the keys themselves. `treadle cluster init` makes it; other machines get these without the
 * keys that are not theirs. `servers.json`, which has the servers' own password, and what is made of it stay.
 */
import { existsSync } from "node:fs";
import { chmod, mkdir, readdir, readFile, realpath, rename, rm, stat, writeFile } from "node:fs/promises";
import { dirname, join, resolve } from "node:path";
import { AgentName, type CommandSender, type NatsConfig, TreadleError } from "@treadle/contracts";
import { validateConfig } from "@treadle/runtime/runner";
import {
  accountsConfig,
  lockFolder,
  makeKey,
  parseTrust,
  ServerSetup,
  serverConfigs,
  type TrustedKey,
} from "@treadle/transport";
import { z } from "zod";

const writableByAll = 0o002;
const sticky = 0o1000;
const settingsFile = "cluster.json";
const serversFile = "servers.json";
const accountsFile = "accounts.conf";
const trustFile = "trust";
const trustHead = [
  "# The keys whose commands and nodes are accepted. 'treadle cluster remove-node' revokes the key of a node that has one of its own;",
  "# then replace its copies on other machines, and restart the processes that have read it.",
].join("\n");

/** What other machines need to know of the servers. */
const Settings = z.strictObject({
  servers: z.array(z.string()).min(1),
  subjectPrefix: z.string(),
  /** authority of the servers' certificates */
  ca: z.string().optional(),
});

/** Makes the folder. Throws `config.invalid` where anything is in it. */
export async function initCluster(folder: string, setup: z.input<typeof ServerSetup>, nodes: readonly string[]) {
  const path = resolve(folder);
  const there = await readdir(path).catch((error: NodeJS.ErrnoException) => {
    if (error.code === "ENOENT") return undefined;
    throw new TreadleError("config.invalid", `'${path}' is no folder to write keys into: ${error.message}`);
  });
  if (there !== undefined && there.length > 0) {
    throw new TreadleError(
      "config.invalid",
      there.includes(settingsFile)
        ? `'${path}' is the folder of a cluster already, and its keys may be in use; give another folder, or remove it`
        : `'${path}' is not empty: it holds '${there[0]}'; give a folder that is empty, or not there yet`,
    );
  }
  await checkFoldersAbove(path);
  const checked = validateConfig(ServerSetup, setup);
  const keys = [newKey({ role: "runner" })];
  if (nodes.length === 0) keys.push(newKey({ role: "node" }));
  for (const name of nodes) keys.push(newKey({ role: "node", name: newName(name, keys) }));
  if (there === undefined) await mkdir(path, { recursive: true, mode: 0o700 });
  else if ((await stat(path)).uid !== process.getuid?.()) {
    throw new TreadleError(
      "config.invalid",
      `'${path}' is another user's, who could replace what is written there; give a folder of yours, or one that is not there yet`,
    );
  } else await chmod(path, 0o700);
  await writePrivate(join(path, ".gitignore"), "*\n");
  const { servers, subjectPrefix, tls } = checked;
  await writeJson(join(path, settingsFile), { servers, subjectPrefix, ca: tls?.ca } satisfies z.infer<typeof Settings>);
  await writeJson(join(path, serversFile), checked);
  for (const key of keys) await writeKey(path, key);
  await replacePrivate(join(path, trustFile), trustText(keys));
  return writeServers(path, checked, keys);
}

/**
 * Every user may replace what is below a folder that every user may write into, unless it is sticky, as `/tmp` is. Looked at are the
 * folders that the path names, and those where its links lead.
 */
async function checkFoldersAbove(path: string): Promise<void> {
  const real = await realpath(path).catch(() => path); // not there yet
  const parents = new Set([...parentsOf(path), ...parentsOf(real)]);
  for (const parent of parents)
    for (const target of parentsOf(await realpath(parent).catch(() => parent))) parents.add(target);
  for (const parent of [...parents, ...(real === path ? [] : [real])]) {
    const stats = await stat(parent).catch(() => undefined); // mkdir tells what else is wrong with it
    if (stats === undefined || (stats.mode & writableByAll) === 0 || (stats.mode & sticky) !== 0) continue;
    throw new TreadleError(
      "config.invalid",
      `every user of this machine may replace what lies in '${parent}' (mode '${(stats.mode & 0o7777).toString(8)}'); 'chmod o-w ${parent}', or give a folder elsewhere`,
    );
  }
}

/** From the one that it lies in to the root. */
function parentsOf(path: string): string[] {
  const parent = dirname(path);
  return parent === path ? [] : [parent, ...parentsOf(parent)];
}

/** A key of its own for one more node. The servers are to be told: `nats-server --signal reload`. */
export async function addNode(folder: string, name: string): Promise<string[]> {
  return changing(folder, async (path, setup, keys) => {
    const made = newKey({ role: "node", name: newName(name, keys) });
    const text = trustText([...keys, made]);
    await writeKey(path, made);
    await replacePrivate(join(path, trustFile), text);
    return writeServers(path, setup, [...keys, made]);
  });
}

/** Revokes its key. The servers are to be told, and other machines given the new trust file. */
export async function removeNode(folder: string, name: string): Promise<string[]> {
  return changing(folder, async (path, setup, keys) => {
    const left = keys.filter((key) => key.name !== name);
    if (left.length === keys.length) {
      const names = keys.flatMap((key) => key.name ?? []);
      throw new TreadleError(
        "config.invalid",
        `no node '${name}' has a key of its own; nodes with one: ${names.length === 0 ? "none" : names.join(", ")}`,
      );
    }
    // What tells that it is not done yet goes last: one that was killed on the way is finished by doing it again.
    const servers = await writeServers(path, setup, left);
    await rm(join(path, keyFile({ role: "node", name })), { force: true });
    await replacePrivate(join(path, trustFile), trustText(left));
    return servers;
  });
}

/** One at a time: of two that have read the same keys, the later would write over what the earlier has changed. */
async function changing<T>(
  folder: string,
  act: (path: string, setup: ServerSetup, keys: readonly TrustedKey[]) => Promise<T>,
): Promise<T> {
  const path = resolve(folder);
  const setup = await readJson(path, serversFile, ServerSetup);
  const lock = await lockFolder(path, join(path, "change.lock"), () => {});
  try {
    return await act(path, setup, parseTrust(await readFile(join(path, trustFile), "utf8"), join(path, trustFile)));
  } finally {
    await lock.release();
  }
}

/** What connects this process as a runner, or as the node of that name. */
export async function clusterValues(folder: string, sender: CommandSender): Promise<z.input<typeof NatsConfig>> {
  const path = resolve(folder);
  const { servers, subjectPrefix, ca } = await readJson(path, settingsFile, Settings);
  const own = sender.name === undefined ? undefined : join(path, keyFile(sender));
  const key = own !== undefined && existsSync(own) ? own : join(path, keyFile({ role: sender.role }));
  return {
    url: servers.map((server) => `${ca === undefined ? "nats" : "tls"}://${server}`),
    subjectPrefix,
    replicas: servers.length >= 3 ? 3 : 1,
    credentialsFile: key,
    trustFile: join(path, trustFile),
    ...(ca === undefined ? {} : { tls: { ca } }),
  };
}

/** Whose key this machine has: a runner's, where it has one, else a node's. */
export async function keyHolder(folder: string): Promise<CommandSender> {
  const files = await readdir(resolve(folder)).catch((): string[] => []);
  if (files.includes(keyFile({ role: "runner" }))) return { role: "runner" };
  if (files.includes(keyFile({ role: "node" }))) return { role: "node" };
  const [own] = namesOf(files);
  return own === undefined ? { role: "runner" } : { role: "node", name: own };
}

/** Throws `config.invalid` where the folder has no key by which a node of that name, or of none, could speak. */
export async function checkNodeKey(folder: string, name: string | undefined): Promise<void> {
  const path = resolve(folder);
  const files = await readdir(path);
  const names = namesOf(files);
  if (files.includes(keyFile({ role: "node" })) || (name !== undefined && names.includes(name))) return;
  const made = `make one with 'treadle cluster add-node ${name ?? "<name>"}' where the cluster's keys were made`;
  if (names.length === 0)
    throw new TreadleError("config.invalid", `'${path}' has no key of a node; bring one, or ${made}`);
  throw new TreadleError(
    "config.invalid",
    `'${path}' has no key ${name === undefined ? "for all nodes" : `of node '${name}'`}, but those of ${names.map((each) => `'${each}'`).join(", ")}; give --name with one of them, or ${made}`,
  );
}

/** Of nodes with keys of their own. */
const namesOf = (files: readonly string[]): string[] =>
  files.flatMap((file) => /^node-(.+)\.nk$/.exec(file)?.[1] ?? []).sort();

async function readJson<Schema extends z.ZodType>(
  path: string,
  file: string,
  schema: Schema,
): Promise<z.infer<Schema>> {
  const text = await readFile(join(path, file), "utf8").catch((cause) => {
    throw new TreadleError(
      "config.invalid",
      `'${path}' is no folder of a cluster that this can be done with: it has no '${file}'; make one with 'treadle cluster init'`,
      { cause },
    );
  });
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (cause) {
    throw new TreadleError(
      "config.unreadable",
      `'${join(path, file)}' is no JSON; bring back what 'treadle cluster init' wrote`,
      { cause },
    );
  }
  return validateConfig(schema as never, value) as z.infer<Schema>;
}

const keyFile = ({ role, name }: CommandSender): string => `${role}${name === undefined ? "" : `-${name}`}.nk`;

type NewKey = TrustedKey & { readonly seed: string };

function newKey(sender: CommandSender): NewKey {
  const { seed, publicKey } = makeKey();
  return { ...sender, key: publicKey, seed };
}

/** It becomes part of a file's name, of a line and of subjects. Throws `config.invalid`. */
function newName(name: string, keys: readonly TrustedKey[]): string {
  const problem = AgentName.safeParse(name).error?.issues[0]?.message;
  if (problem !== undefined) {
    throw new TreadleError("config.invalid", `a node cannot be called '${name}': its name ${problem}`);
  }
  if (keys.some((key) => key.name === name)) {
    throw new TreadleError("config.invalid", `node '${name}' has a key already; choose another name`);
  }
  return name;
}

function writeKey(path: string, key: NewKey): Promise<void> {
  return writePrivate(join(path, keyFile(key)), `${key.seed}\n`);
}

function trustText(keys: readonly TrustedKey[]): string {
  const lines = keys.map(({ role, key, name }) => [role, key, name].filter(Boolean).join(" "));
  const text = `${[trustHead, ...lines].join("\n")}\n`;
  parseTrust(text, trustFile); // what cannot be read again is not written
  return text;
}

async function writeServers(path: string, setup: ServerSetup, keys: readonly TrustedKey[]): Promise<string[]> {
  await replacePrivate(join(path, accountsFile), accountsConfig(setup, keys));
  const configs = serverConfigs(setup, accountsFile);
  const files = configs.map((_, index) => join(path, configs.length === 1 ? "nats.conf" : `nats-${index + 1}.conf`));
  for (const [index, text] of configs.entries()) await replacePrivate(files[index] as string, text);
  return files;
}

const writeJson = (path: string, value: unknown): Promise<void> =>
  writePrivate(path, `${JSON.stringify(value, null, 2)}\n`);

/** A file that is not there yet. */
async function writePrivate(path: string, text: string): Promise<void> {
  await writeFile(path, text, { mode: 0o600, flag: "wx" }).catch((error: NodeJS.ErrnoException) => {
    if (error.code !== "EEXIST") throw error;
    throw new TreadleError("config.invalid", `'${path}' is there already and may be in use; move it away`);
  });
}

/** Whole or not at all: who reads it meanwhile finds the old one. */
async function replacePrivate(path: string, text: string): Promise<void> {
  const beside = `${path}.${crypto.randomUUID()}.new`;
  await writePrivate(beside, text);
  await rename(beside, path);
}
