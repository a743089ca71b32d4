/**
 * A client of an account that everybody shares puts runs of his own making where runs are kept for other machines, and waits
 * for somebody to resume one.
 */
import { existsSync } from "node:fs";
import { mkdir, mkdtemp, readdir, readFile, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { NatsConfig, RuntimeConfig } from "@treadle/contracts";
import { RunFolder, resumeRun } from "@treadle/runtime/runner";
import { NatsRunStore } from "@treadle/transport";
import { connectStranger, type NatsServer, startNatsServer } from "@treadle/transport/testing";
import { afterAll, beforeAll, expect, test } from "vitest";
import { settingsOf } from "../../packages/runtime/src/runner/run/config.ts";
import { openKeptRun } from "../../packages/runtime/src/runner/run/kept-run.ts";
import { acceptRun, keptSettings, signStoredRun } from "../../packages/runtime/src/runner/run/stored-run.ts";
import { type Keys, makeKeys } from "../support/keys.ts";
import { NodesWorld } from "../support/nodes.ts";

let root: string;
let server: NatsServer;
let keys: Keys;
let numRuns = 0;
const mark = (): string => join(root, "was-run");
const project = (): string => join(root, "project");
const runs = (): string => join(project(), "runs");

beforeAll(async () => {
  root = await mkdtemp(join(tmpdir(), "treadle-h-"));
  keys = await makeKeys();
  server = await startNatsServer({ args: ["-js"] });
  const evil = `import fs from "node:fs"; fs.writeFileSync(${JSON.stringify(mark())}, "");\nexport default {};\n`;
  for (const folder of ["outside", "project/workflows/own", "project/runs/run-a/checkpoints/x"]) {
    await mkdir(join(root, folder), { recursive: true });
    await writeFile(join(root, folder, "run.js"), evil);
  }
  await symlink(join(root, "outside"), join(project(), "linked"));
});
afterAll(async () => {
  await server[Symbol.asyncDispose]();
  await keys.remove();
  await rm(root, { recursive: true, force: true });
});

const withKeys = () => ({ url: server.url, trustFile: keys.trust, keyFile: keys.runner });
const asNode = () => ({ ...withKeys(), keyFile: keys.node });
const withoutKeys = () => ({ url: server.url });
/** what a run of this server looks like */
const honest = (config: object = {}, cluster: object = {}) => ({
  workflow: "workflows/own",
  config: { steps: 1, ...config, cluster: { nats: { ...withoutKeys(), durableRuns: true }, ...cluster } },
});

/** Keeps this text as the configuration of a new run. */
async function put(text: string, runId = `run-${++numRuns}`): Promise<string> {
  const folder = await mkdtemp(join(root, "attacker-"));
  await writeFile(join(folder, "config.json"), text);
  const nats = NatsConfig.parse(withoutKeys());
  const store = await NatsRunStore.open({ nats, name: "attacker", runId, folder });
  await store.keep("config.json");
  await store.close();
  return runId;
}

async function signed(nats: object, runId: string, stored: ReturnType<typeof honest>): Promise<string> {
  const folder = new RunFolder(await mkdtemp(join(root, "signer-")), runId);
  await folder.create();
  await signStoredRun(NatsConfig.parse(nats), folder, stored);
  return readFile(folder.configFile, "utf8");
}

async function resume(runId: string, nats: object): Promise<string> {
  const options = { runId, runsRoot: runs(), projectRoot: project(), onEvent: () => {} };
  const code = await resumeRun({ ...options, nats: nats as { url: string } }).then(
    () => "resumed",
    (error: { code: string }) => error.code,
  );
  expect(existsSync(mark()), `${runId}: something was run`).toBe(false);
  expect(await readdir(runs()), "nothing of a refused run is left to be obeyed later").not.toContain(runId);
  return code;
}

test("SR1, TR5: where keys are configured, nothing counts but what a trusted runner's key signed for this very run", async () => {
  const runner = await signed(withKeys(), "run-x", honest());
  const { proof, ...said } = JSON.parse(runner) as { proof: object; config: object; workflow: string };
  const otherKeys = await makeKeys();
  try {
    const foreign = { url: server.url, trustFile: otherKeys.trust, keyFile: otherKeys.runner };
    const forged: Record<string, string> = {
      unsigned: JSON.stringify(said),
      "another workflow": JSON.stringify({ ...said, workflow: "../outside", proof }),
      "another setting": JSON.stringify({ ...said, config: { ...said.config, steps: 2 }, proof }),
      "a key that nobody trusts": await signed(foreign, "run-x", honest()),
      "a node's key": await signed(asNode(), "run-x", honest()),
      "a signature that is none": JSON.stringify({ ...said, proof: { ...proof, signature: "AAAA" } }),
    };
    for (const [what, text] of Object.entries(forged)) {
      expect([what, await resume(await put(text, "run-x"), withKeys())]).toEqual([what, "control-plane.untrusted"]);
    }
    // What was signed is for one run.
    expect(await resume(await put(runner, "run-y"), withKeys())).toBe("control-plane.untrusted");
    const resumer = { nats: withKeys(), projectRoot: project(), runsRoot: runs(), overrides: [] };
    expect(await acceptRun("run-x", runner, resumer)).toMatchObject({ workflow: "workflows/own" });
  } finally {
    await otherKeys.remove();
  }
});

const shell = { command: "/bin/sh", flags: ["-c", "id"] };
const group = (over: object) => honest({}, { groups: { g: { labels: {}, ...over } } });
const tracked = (tracker: object) => honest({ observe: { trackers: [tracker] } });
const attacks = (): Record<string, [code: string, stored: object]> => ({
  "a workflow above": ["workflow.invalid", { ...honest(), workflow: "../outside" }],
  "a workflow anywhere": ["workflow.invalid", { ...honest(), workflow: join(root, "outside") }],
  "a workflow by a link": ["workflow.invalid", { ...honest(), workflow: "linked" }],
  "a file that was kept": ["workflow.invalid", { ...honest(), workflow: "runs/run-a/checkpoints/x" }],
  "this machine": ["config.invalid", { workflow: "workflows/own", config: { cluster: {} } }],
  "this machine, by null": ["config.invalid", honest({}, { nats: null })],
  "no cluster": ["config.invalid", { workflow: "workflows/own", config: {} }],
  "a shell": ["node.forbidden", group({ interpreter: shell })],
  "a preload": ["node.forbidden", group({ env: { NODE_OPTIONS: "--import=data:text/javascript," } })],
  "a variable": ["node.forbidden", group({ env: { HARMLESS: "1" } })],
  "a file to write": ["config.invalid", honest({ placement: { auto: { profile: "package.json" } } })],
  "an address to listen on": ["config.invalid", honest({ observe: { metrics: { address: "0.0.0.0:1" } } })],
  "an address to send to": ["config.invalid", honest({ observe: { otlp: { endpoint: "http://evil.example" } } })],
  "a program for a tracker": ["config.invalid", tracked({ kind: "wandb", python: "/tmp/evil.sh" })],
  "a module for a tracker": ["config.invalid", tracked({ kind: "module", module: "runs/run-a/evil.js" })],
  "a file for a tracker": ["config.invalid", tracked({ kind: "jsonl", path: "/root/.ssh/authorized_keys" })],
  "a folder for a tracker": ["config.invalid", tracked({ kind: "tensorboard", folder: "/root" })],
  "a server for a tracker": ["config.invalid", tracked({ kind: "mlflow", url: "http://evil.example" })],
  "links for all": ["config.invalid", honest({}, { links: { bind: "0.0.0.0" } })],
  "no run": ["config.unreadable", { config: 1 }],
});

test("SR2, SR3, SR4: without keys, too, what is fetched runs no code but the project's, on nodes, as any of them allows", async () => {
  for (const [what, [code, stored]] of Object.entries(attacks())) {
    expect([what, await resume(await put(JSON.stringify(stored)), withoutKeys())]).toEqual([what, code]);
  }
  expect(await resume(await put("{"), withoutKeys())).toBe("config.unreadable");
}, 600_000);

test("SR4: each setting that every workflow has is decided on, once", () => {
  const { examined } = keptSettings;
  const decided = settingsOf(RuntimeConfig).map(
    (path) => examined.find((each) => path === each || path.startsWith(`${each}.`)) ?? path,
  );
  expect([...new Set(decided)].sort()).toEqual(Object.values(keptSettings).flat().sort());
});

test("SR1: without keys only servers on loopback are asked at all", async () => {
  expect(await resume("run-z", { url: "nats://192.0.2.1:4222" })).toBe("control-plane.untrusted");
});

test("SR3: what is kept does not say to which servers, nor as whom, a runner connects", async () => {
  const nats = {
    ...{ url: "nats://evil.example:4222", subjectPrefix: "evil", credentialsFile: "/root/secret", trustFile: "/evil" },
    ...{ keyFile: "/root/secret", tls: { ca: "/evil" }, leaseMs: 7000, durableRuns: false },
  };
  const resumer = { nats: withoutKeys(), projectRoot: project(), runsRoot: runs(), overrides: [] };
  const { config } = await acceptRun("run-x", JSON.stringify(honest({}, { nats })), resumer);
  const { cluster } = config as { cluster: object };
  expect(cluster).toEqual({
    nats: { url: server.url, leaseMs: 7000, outageMs: 60_000, replicas: 1, durableRuns: true },
  });
});

test("SR4: what whoever resumes it says as well is his own word", async () => {
  const text = JSON.stringify(group({ interpreter: shell, env: { HARMLESS: "1" } }));
  const accept = (...overrides: string[]) =>
    acceptRun("run-x", text, { nats: withoutKeys(), projectRoot: project(), runsRoot: runs(), overrides });
  const interpreter = `cluster.groups.g.interpreter=${JSON.stringify(shell)}`;
  await expect(accept(interpreter)).rejects.toMatchObject({ code: "node.forbidden" });
  await expect(accept("cluster.groups.g.interpreter.command=/bin/sh")).rejects.toMatchObject({
    code: "node.forbidden",
  });
  await expect(accept(interpreter, "cluster.groups.g.env.HARMLESS='2'")).resolves.toBeDefined();
  await expect(accept(interpreter, "cluster.groups.g.env.HARMLESS='1'")).resolves.toBeDefined();
});

test("SR1: a folder takes states and checkpoints of what is kept, and never how the run is to be run", async () => {
  const nats = NatsConfig.parse({ ...withKeys(), durableRuns: true });
  const runId = `run-${++numRuns}`;
  const folder = new RunFolder(join(root, "here"), runId);
  await folder.create();
  await folder.writeJson(folder.configFile, honest());
  const first = await openKeptRun(nats, folder, () => {});
  await first.append("one");
  await first.close();
  await put(JSON.stringify({ ...honest(), workflow: "../outside" }), runId);
  const other = new RunFolder(join(root, "there"), runId);
  await other.create();
  await other.writeJson(other.configFile, honest()); // and no journal: it is behind what is kept
  const second = await openKeptRun(nats, other, () => {});
  expect(second.entries).toEqual(["one"]);
  await second.close();
  expect(JSON.parse(await readFile(other.configFile, "utf8"))).toMatchObject({ workflow: "workflows/own" });
});

test("a journal that was put there names no file outside of the run's folder", async () => {
  const nats = NatsConfig.parse({ ...withoutKeys(), durableRuns: true });
  for (const name of ["../../../etc/passwd", "/etc/passwd", "state/../../x", "logs/x"]) {
    const runId = `run-${++numRuns}`;
    const attacker = await NatsRunStore.open({ nats, name: "attacker", runId, folder: root });
    await attacker.take();
    const state = { actor: name };
    await attacker.append(JSON.stringify({ type: "step", step: 1, seconds: 1, metrics: {}, items: [], state }));
    await attacker.close();
    const folder = new RunFolder(join(root, "there"), runId);
    await folder.create();
    await folder.writeJson(folder.configFile, honest());
    await expect(openKeptRun(nats, folder, () => {})).rejects.toMatchObject({ code: "journal.corrupt" });
  }
});

const stepOf = (step: number, state: object = {}, items: string[] = []) =>
  JSON.stringify({ type: "step", step, seconds: 1, metrics: {}, items, state });
const state = "state/actor.1";
/** Too large for a message. */
const large = [..."x".repeat(600)].map((letter, index) => letter.repeat(1000) + index);

/** A run's log as a runner with keys keeps it: its mark, a step with a state, a large one, and one more. */
async function keptByRunner(nats: object, runId: string): Promise<void> {
  const folder = new RunFolder(await mkdtemp(join(root, "runner-")), runId);
  await folder.create();
  await folder.writeJson(folder.configFile, honest());
  await writeFile(join(folder.path, state), "the runner's");
  const run = await openKeptRun(NatsConfig.parse({ ...nats, durableRuns: true }), folder, () => {});
  await run.append(stepOf(1, { actor: state }), [state]);
  await run.append(stepOf(2, {}, large));
  await run.append(stepOf(3));
  await run.close();
}

/** What another machine has of it when it resumes it: the code of the refusal, or its entries and state. */
async function resumedElsewhere(runId: string): Promise<unknown> {
  const folder = new RunFolder(await mkdtemp(join(root, "elsewhere-")), runId);
  await folder.create();
  await folder.writeJson(folder.configFile, honest());
  const nats = NatsConfig.parse({ ...withKeys(), durableRuns: true });
  try {
    const run = await openKeptRun(nats, folder, () => {});
    const found = { entries: [...run.entries], state: await readFile(join(folder.path, state), "utf8") };
    await run.close();
    return found;
  } catch (error) {
    // Of what was forged nothing is here.
    expect(await readFile(join(folder.path, state), "utf8").catch(() => "the runner's")).toBe("the runner's");
    return (error as { code?: string }).code ?? error;
  }
}

test("TR5, RN5: with keys, entries and files count only as a runner has signed them, each in its place", async () => {
  const stranger = await connectStranger(server.url);
  const subjectOf = (runId: string, number: number) =>
    `$KV.treadle-journals.${runId}.n.${String(number).padStart(9, "0")}`;
  const entryOf = async (runId: string, number: number) =>
    (await stranger.request(`$JS.API.DIRECT.GET.KV_treadle-journals.${subjectOf(runId, number)}`)).string();
  const putEntry = async (runId: string, number: number, text: string) => {
    const answer = (await stranger.request(subjectOf(runId, number), text)).json<{ seq?: number }>();
    expect(answer.seq).toBeGreaterThan(0);
  };
  const storeOf = (nats: object, runId: string, folder: string) =>
    NatsRunStore.open({ nats: NatsConfig.parse(nats), name: "attacker", runId, folder });
  const appended = (nats: object) => async (runId: string) => {
    const store = await storeOf(nats, runId, root);
    await store.take(await storedBy(runId));
    await store.append(stepOf(4));
    await store.close();
  };
  const storedBy = async (runId: string) => {
    const store = await storeOf(withoutKeys(), runId, root);
    await store.take();
    await store.close();
    return store.entries;
  };
  const replaced = (name: (runId: string) => Promise<string>) => async (runId: string) => {
    const folder = await mkdtemp(join(root, "attacker-"));
    const object = await name(runId);
    await mkdir(join(folder, object, ".."), { recursive: true });
    await writeFile(join(folder, object), object === state ? "forged" : stepOf(2, {}, ["forged"]));
    const store = await storeOf(withoutKeys(), runId, folder);
    await store.keep(object);
    await store.close();
  };
  const changed = (change: (stored: { entry: string; proof: object }) => object) => async (runId: string) => {
    const stored = JSON.parse(await entryOf(runId, 3)) as { entry: string; proof: object };
    await putEntry(runId, 3, JSON.stringify({ ...stored, ...change(stored) }));
  };
  const other = `run-${++numRuns}`;
  await keptByRunner(withKeys(), other);
  const forgeries: Record<string, (runId: string) => Promise<unknown>> = {
    "an entry that nobody has signed": appended(withoutKeys()),
    "an entry that a node has signed": appended(asNode()),
    "another entry under a signature": changed(({ entry }) => ({ entry: entry.replace('"step":3', '"step":7') })),
    "an entry without its signature": changed(() => ({ proof: undefined })),
    "an entry of another place": async (runId) => putEntry(runId, 3, await entryOf(runId, 1)),
    "an entry of another run": async (runId) => putEntry(runId, 3, await entryOf(other, 3)),
    "another large entry": replaced(
      async (runId) => (JSON.parse(await entryOf(runId, 2)) as { object: string }).object,
    ),
    "another state": replaced(async () => state),
    "an older state beside newer entries": async (runId) => {
      const folder = await mkdtemp(join(root, "older-"));
      await mkdir(join(folder, "state"));
      await writeFile(join(folder, state), "the runner's own, of before");
      const store = await storeOf(withKeys(), runId, folder); // as it has signed it at some time
      await store.keep(state);
      await store.close();
    },
    "a mark where an entry was": (runId) => putEntry(runId, 2, JSON.stringify({ owner: "x", previous: "" })),
    "a mark that follows, where an entry was": async (runId) => {
      const { previous } = JSON.parse(await entryOf(runId, 2)) as { previous: string };
      await putEntry(runId, 2, JSON.stringify({ owner: "x", previous }));
    },
    "a mark where the last entry was": async (runId) => {
      const { previous } = JSON.parse(await entryOf(runId, 3)) as { previous: string };
      await putEntry(runId, 3, JSON.stringify({ owner: "x", previous }));
    },
    "a mark of the runner's where an entry was": async (runId) => putEntry(runId, 2, await entryOf(runId, 0)),
    "an entry less": async (runId) => {
      await putEntry(runId, 2, await entryOf(runId, 3));
      await stranger.request(
        "$JS.API.STREAM.PURGE.KV_treadle-journals",
        JSON.stringify({ filter: subjectOf(runId, 3) }),
      );
    },
  };
  const honestly = { entries: [stepOf(1, { actor: state }), stepOf(2, {}, large), stepOf(3)], state: "the runner's" };
  expect(await resumedElsewhere(other)).toEqual(honestly);
  for (const [what, forge] of Object.entries(forgeries)) {
    const runId = `run-${++numRuns}`;
    await keptByRunner(withKeys(), runId);
    await forge(runId);
    expect([what, await resumedElsewhere(runId)]).toEqual([what, "control-plane.untrusted"]);
  }
  await stranger.close();
}, 480_000);

test("RN6: what is larger than it says, or than a configuration is, is read no further", async () => {
  const stranger = await connectStranger(server.url);
  const runId = `run-${++numRuns}`;
  await keptByRunner(withKeys(), runId);
  const encoded = Buffer.from(`${runId}/${state}`).toString("base64").replaceAll("+", "-").replaceAll("/", "_");
  const found = await stranger.request(
    "$JS.API.STREAM.MSG.GET.OBJ_treadle-runs",
    JSON.stringify({ last_by_subj: `$O.treadle-runs.M.${encoded}` }),
  );
  const { message } = found.json<{ message: { data: string } }>();
  const { nuid } = JSON.parse(Buffer.from(message.data, "base64").toString()) as { nuid: string };
  const chunks = `$O.treadle-runs.C.${nuid}`;
  await stranger.request("$JS.API.STREAM.PURGE.OBJ_treadle-runs", JSON.stringify({ filter: chunks }));
  await stranger.request(chunks, "x".repeat(100_000));
  expect(await resumedElsewhere(runId)).toBe("journal.corrupt");
  expect(await resume(await put(JSON.stringify(honest({ long: "x".repeat(2 ** 20) }))), withKeys())).toBe(
    "journal.corrupt",
  );
  await stranger.close();
}, 120_000);

test("RN5: entries that this machine has itself need no signature: a run that began without keys goes on with them", async () => {
  const runId = `run-${++numRuns}`;
  const folder = new RunFolder(join(root, "began"), runId);
  await folder.create();
  await folder.writeJson(folder.configFile, honest());
  for (const [entries, nats] of [
    [[stepOf(1)], withoutKeys()],
    [[stepOf(1), stepOf(2)], withKeys()],
  ] as const) {
    const run = await openKeptRun(NatsConfig.parse({ ...nats, durableRuns: true }), folder, () => {});
    await run.append(entries.at(-1) as string);
    expect(run.entries).toEqual(entries);
    await run.close();
    if (entries.length === 1) expect(await resumedElsewhere(runId)).toBe("control-plane.untrusted");
  }
  // What the runner has signed since vouches for what it went on from.
  const elsewhere = new RunFolder(await mkdtemp(join(root, "elsewhere-")), runId);
  await elsewhere.create();
  await elsewhere.writeJson(elsewhere.configFile, honest());
  const run = await openKeptRun(NatsConfig.parse({ ...withKeys(), durableRuns: true }), elsewhere, () => {});
  expect(run.entries).toEqual([stepOf(1), stepOf(2)]);
  await run.close();
});

test("KR2, KR3: a journal that was put back to where it was before takes nothing from a folder that has more", async () => {
  const nats = NatsConfig.parse({ ...withKeys(), durableRuns: true });
  const stranger = await connectStranger(server.url);
  const runId = `run-${++numRuns}`;
  const folder = new RunFolder(join(root, "longer"), runId);
  await folder.create();
  await folder.writeJson(folder.configFile, honest());
  const note = join(folder.checkpoints, "step-000002/checkpoint.json");
  await mkdir(join(note, ".."), { recursive: true });
  await writeFile(note, "{}");
  const first = await openKeptRun(nats, folder, () => {});
  for (const step of [1, 2, 3]) await first.append(stepOf(step));
  await first.close();
  // Put back to its first step, it is taken elsewhere, where one more is made.
  for (const number of ["000000002", "000000003"]) {
    const filter = `$KV.treadle-journals.${runId}.n.${number}`;
    await stranger.request("$JS.API.STREAM.PURGE.KV_treadle-journals", JSON.stringify({ filter }));
  }
  const elsewhere = new RunFolder(join(root, "shorter"), runId);
  await elsewhere.create();
  await elsewhere.writeJson(elsewhere.configFile, honest());
  const second = await openKeptRun(nats, elsewhere, () => {});
  expect(second.entries).toEqual([stepOf(1)]);
  await second.append(stepOf(2, {}, ["another"]));
  await second.syncFolder("checkpoints");
  await second.close();
  const before = await readFile(folder.journalFile, "utf8");
  const refused = await openKeptRun(nats, folder, () => {}).catch((error: Error & { code: string }) => error);
  expect(refused).toMatchObject({ code: "journal.corrupt", message: expect.stringContaining("from number 2 on") });
  expect(await readFile(folder.journalFile, "utf8")).toBe(before);
  // Gone on with further than here, it counts; and the folder has its checkpoints still.
  const third = await openKeptRun(nats, elsewhere, () => {});
  for (const step of [3, 4]) await third.append(stepOf(step));
  await third.close();
  const fourth = await openKeptRun(nats, folder, () => {});
  expect(fourth.entries).toHaveLength(4);
  expect(existsSync(note)).toBe(true);
  await fourth.close();
  await stranger.close();
}, 120_000);

test("an attacker's run is refused by a runner's process, and no shell opens", async () => {
  await using world = await NodesWorld.open();
  const { keys: own, url } = world.nats;
  const text = JSON.stringify(group({ interpreter: { command: "/bin/sh", flags: ["-c", `touch ${mark()}; echo`] } }));
  const folder = await mkdtemp(join(root, "attacker-"));
  await writeFile(join(folder, "config.json"), text);
  const nats = NatsConfig.parse({ url, credentialsFile: own.runner, trustFile: own.trust });
  const store = await NatsRunStore.open({ nats, name: "attacker", runId: "run-x", folder });
  await store.keep("config.json");
  await store.close();
  const run = world.startRun([], "run-x");
  expect(await run.exited).toBe(1);
  expect(run.events.at(-1)).toMatchObject({ code: "control-plane.untrusted" });
  expect(existsSync(mark())).toBe(false);
});
