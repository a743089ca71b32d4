/** Weights that a trainer has published as a file, and a server is given without their bytes passing through Node. */
import { existsSync } from "node:fs";
import { chmod, mkdir, mkdtemp, open, readdir, rename, rm, stat, symlink, truncate, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { crc32, type HostFiles, type Sampling, type Weights, type WeightTicket } from "@treadle/contracts";
import { ServerEngine, weightsIdOf } from "@treadle/engines";
import {
  type ServerDouble,
  SglangDouble,
  TinyModel,
  tinyWeights,
  VllmDouble,
  writeTinyModel,
} from "@treadle/engines/testing";
import { afterAll, afterEach, beforeAll, describe, expect, test } from "vitest";
import { valueHeadName } from "../src/embedded/transformer-config.ts";
import { writeTensors } from "../src/server/safetensors.ts";
import { conformingModel } from "../src/testing/conformance.ts";
import { sealTicket } from "../src/weight-ticket.ts";

const model = { ...conformingModel, layers: 1, width: 8, heads: 1 };
const sampling: Sampling = { maxTokens: 3, temperature: 1, stopTokens: [], seed: 9 };
const prompts = [Int32Array.of(1, 2), Int32Array.of(4, 5, 6)];
const tokens = [1, 2, 3, 4];
const nonce = "0123456789abcdef".repeat(2);
const refused = { code: "engine.weights-mismatch" };

let folder: string;
let hostFiles: HostFiles;
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), "treadle-linked-"));
  await mkdir(join(folder, "published"));
  hostFiles = {
    folder: join(folder, "published"),
    ownPrefix: "treadle-a.1-",
    leftPrefix: "treadle-a.left-",
    runPrefix: "treadle-a.",
  };
  await writeTinyModel(join(folder, "tiny"), conformingModel, tinyWeights(conformingModel, 1));
});
afterAll(() => rm(folder, { recursive: true, force: true }));

/** What a server says whose own numbers have fewer bits than those that it is given. */
let saidChecksum: string | undefined;
class Sglang extends SglangDouble {
  protected override checksum(): string {
    return saidChecksum ?? super.checksum();
  }
}
class Vllm extends VllmDouble {
  protected override checksum(): string {
    return saidChecksum ?? super.checksum();
  }
}

const opened: { readonly engine: ServerEngine; readonly double: ServerDouble }[] = [];
afterEach(async () => {
  saidChecksum = undefined;
  for (const { engine, double } of opened.splice(0)) {
    await double.kill();
    await engine.close();
  }
});

async function start(kind: "sglang" | "vllm", weightsBy: "ticket" | "bytes" = "ticket", model_ = join(folder, "tiny")) {
  const double = await new { sglang: Sglang, vllm: Vllm }[kind]({ model: model_ }).start();
  const config = {
    kind,
    url: double.url,
    model: model_,
    weightsFolder: join(folder, "weights"),
    trainer: { kind: "torch" as const, weightsBy },
  };
  const engine = await ServerEngine.create(model, config, { hostFiles });
  opened.push({ engine, double });
  return { engine, double };
}

let stores = 0;
/** What a trainer's process does, in a store of its own. */
async function publish(weights: Weights, { root = hostFiles.folder, name = "treadle-a.7-weights" } = {}) {
  const store = join(root, `${name}-${++stores}`);
  const inside = `version-${weights.policyVersion}-1`;
  await mkdir(join(store, inside), { recursive: true, mode: 0o700 });
  await writeFile(join(store, "nonce"), nonce);
  const path = join(store, inside, "model.safetensors");
  const tensors = weights.parameters.map((each) => ({ ...each, dtype: "F32" as const }));
  await writeTensors(path, tensors);
  const listed = tensors.map(({ name, shape, dtype, data }) => {
    return { name, shape: [...shape], dtype, crc32: crc32(new Uint8Array(data.buffer), 0) };
  });
  const { policyVersion } = weights;
  const ticket: WeightTicket = sealTicket({ policyVersion, store, nonce, folder: inside, tensors: listed });
  return { ticket, store, path, inside: join(store, inside) };
}
const newer = (seed: number, policyVersion: number) => tinyWeights(conformingModel, seed, policyVersion);
const scoredBy = ({ parameters }: Weights) => new TinyModel(parameters).score(tokens, 1);
const linked = async (path: string) => {
  await rename(path, `${path}.x`);
  await symlink(`${path}.x`, path);
};
const filesOfServer = async () => {
  const [own] = await readdir(join(folder, "weights"));
  return readdir(join(folder, "weights", own!));
};

describe.each(["sglang", "vllm"] as const)("a server of kind %s", (kind) => {
  test("is given the very file that was published, and keeps it when newer ones replace it", async () => {
    const { engine, double } = await start(kind);
    const weights = newer(2, 1);
    const { ticket, path, store } = await publish(weights);
    const { ino } = await stat(path);
    expect(await engine.opens(ticket)).toBe(true);
    await engine.loadTicket(ticket);
    expect([engine.policyVersion, engine.weightsId]).toEqual([1, weightsIdOf(ticket)]);
    expect(double.score(tokens)).toEqual(scoredBy(weights));
    const [version] = await filesOfServer();
    const [own] = await readdir(join(folder, "weights"));
    expect((await stat(join(folder, "weights", own!, version!, "model.safetensors"))).ino).toBe(ino);
    // The trainer publishes the next ones, and the server starts again: it gets the same weights once more.
    await rm(store, { recursive: true });
    await double.kill();
    await double.start();
    const [completion] = await engine.generate(prompts, sampling);
    expect(completion!.policyVersion).toBe(1);
    expect(double.score(tokens)).toEqual(scoredBy(weights));
    const next = newer(3, 2);
    await engine.loadTicket((await publish(next)).ticket);
    expect(double.score(tokens)).toEqual(scoredBy(next));
    expect(await filesOfServer()).toEqual([expect.stringMatching(/^version-2-/)]);
  });

  test("takes weights by tickets and as bytes in any order, also the same numbers under another version", async () => {
    const { engine, double } = await start(kind);
    const again = (policyVersion: number) => newer(5, policyVersion);
    await engine.loadTicket((await publish(again(1))).ticket);
    await engine.loadTicket((await publish(again(2))).ticket);
    await engine.loadWeights(again(3));
    await engine.loadTicket((await publish(again(4))).ticket);
    expect(engine.policyVersion).toBe(4);
    expect(double.score(tokens)).toEqual(scoredBy(again(4)));
  });

  test("is given nothing of what is not as it was published, and goes on with what it has", async () => {
    const { engine, double } = await start(kind);
    const weights = newer(2, 1);
    await engine.loadTicket((await publish(weights)).ticket);
    const spoilt: readonly [string, string, (file: Awaited<ReturnType<typeof publish>>) => Promise<unknown>][] = [
      ["cut short", "no whole safetensors file", ({ path }) => truncate(path, 200)],
      ["gone", "not there any more", ({ inside }) => rm(inside, { recursive: true })],
      ["a folder", "a link, or no file", ({ path }) => rm(path).then(() => mkdir(path))],
      ["a link", "a link, or no file", ({ path }) => linked(path)],
      ["in a link", "a link, or no folder", ({ inside }) => linked(inside)],
      ["in a store that is a link", "a link, or no folder", ({ store }) => linked(store)],
      ["in a store that is open", "not this user's alone", ({ store }) => chmod(store, 0o777)],
      ["open to others", "not this user's alone", ({ path }) => chmod(path, 0o644)],
      [
        "of another type",
        "other tensors than were published",
        ({ path }) =>
          rm(path).then(() =>
            writeTensors(
              path,
              newer(3, 2).parameters.map((each) => ({ ...each, dtype: "BF16" })),
            ),
          ),
      ],
      [
        "of other tensors",
        "other tensors than were published",
        async ({ path }) => {
          await rm(path);
          const renamed = weights.parameters.map((each, at) => ({ ...each, name: `${each.name}${at}` }));
          await writeTensors(
            path,
            renamed.map((each) => ({ ...each, dtype: "F32" as const })),
          );
        },
      ],
    ];
    for (const [what, told, spoil] of spoilt) {
      const file = await publish(newer(3, 2));
      await spoil(file);
      await expect(engine.loadTicket(file.ticket), what).rejects.toMatchObject({
        ...refused,
        message: expect.stringContaining(told),
      });
    }
    expect([engine.policyVersion, await filesOfServer()]).toEqual([1, [expect.stringMatching(/^version-1-/)]]);
    await engine.generate(prompts, sampling);
    expect(double.score(tokens)).toEqual(scoredBy(weights));
  });

  const alter = async (path: string) => {
    await using file = await open(path, "r+");
    const { size } = await file.stat();
    const byte = Buffer.alloc(1);
    await file.read(byte, 0, 1, size - 1);
    await file.write(Buffer.of(byte[0]! ^ 1), 0, 1, size - 1);
  };
  const lastTensor = newer(1, 1).parameters.at(-1)!.name;
  const altered = {
    ...refused,
    message: expect.stringMatching(
      new RegExp(`model.safetensors' is not as it was written: '${lastTensor}' has checksum`),
    ),
  };
  const loadsOf = (double: ServerDouble) =>
    double.calls.filter((call) => /^POST .*(update_weights|collective_rpc)/.test(call));

  test("AS7 a file of which one bit was changed is refused by the tensor's name before the server hears of it", async () => {
    const { engine, double } = await start(kind);
    const weights = newer(2, 1);
    await engine.loadTicket((await publish(weights)).ticket);
    const loads = loadsOf(double).length;
    const { ticket, path } = await publish(newer(3, 2));
    await alter(path);
    await expect(engine.loadTicket(ticket)).rejects.toMatchObject(altered);
    expect(loadsOf(double)).toHaveLength(loads);
    expect([engine.policyVersion, await filesOfServer()]).toEqual([1, [expect.stringMatching(/^version-1-/)]]);
    await engine.generate(prompts, sampling);
    expect(double.score(tokens)).toEqual(scoredBy(weights));
  });

  test.each([
    ["a bit changed", alter, altered],
    [
      "its end cut off",
      (path: string) => truncate(path, 200),
      { message: expect.stringContaining("no whole safetensors file") },
    ],
    ["gone", (path: string) => rm(path), { ...refused, message: expect.stringContaining("cannot be read") }],
  ] as const)(
    "AS7 after a restart, a server is not given a file again that has %s; the next weights are",
    async (_, spoil, told) => {
      for (const by of ["ticket", "bytes"] as const) {
        const { engine, double } = await start(kind);
        const bring = async (weights: Weights) =>
          by === "ticket" ? engine.loadTicket((await publish(weights)).ticket) : engine.loadWeights(weights);
        await bring(newer(2, 1));
        const [own] = await readdir(join(folder, "weights"));
        const [version] = await filesOfServer();
        await spoil(join(folder, "weights", own!, version!, "model.safetensors"));
        await double.kill();
        await double.start();
        await expect(engine.generate(prompts, sampling)).rejects.toMatchObject(told);
        expect(loadsOf(double).length).toBe(2); // of both before it was killed
        expect(double.generations.length).toBe(2); // the two that probe its log-probabilities
        await bring(newer(3, 2));
        expect((await engine.generate(prompts, sampling))[0]!.policyVersion).toBe(2);
        expect(double.score(tokens)).toEqual(scoredBy(newer(3, 2)));
        for (const each of opened.splice(0)) {
          await each.double.kill();
          await each.engine.close();
        }
      }
    },
  );

  test("AS7 the model's own folder is not loaded again when its tensors are others than it had", async () => {
    const path = join(folder, `${kind}-own`);
    await writeTinyModel(path, conformingModel, tinyWeights(conformingModel, 1));
    const { engine, double } = await start(kind, "ticket", path);
    await double.kill();
    await double.start();
    await rm(join(path, "model.safetensors"));
    await writeTinyModel(path, { ...conformingModel, dtype: "BF16" }, tinyWeights(conformingModel, 1));
    await expect(engine.generate(prompts, sampling)).rejects.toMatchObject({
      code: "config.invalid",
      message: expect.stringContaining("are others than they were when it was opened"),
    });
    expect(loadsOf(double)).toHaveLength(1);
  });

  test("AS1 a change too small for the server's own type is no update that it has missed; in its own type, one is", async () => {
    const path = join(folder, `${kind}-bf16`);
    await writeTinyModel(path, { ...conformingModel, dtype: "BF16" }, tinyWeights(conformingModel, 1));
    const rounding = await start(kind, "ticket", path);
    const exact = await start(kind);
    saidChecksum = "that of the numbers before";
    for (const { engine } of [rounding, exact]) await engine.loadTicket((await publish(newer(2, 1))).ticket);
    const { ticket } = await publish(newer(3, 2));
    await rounding.engine.loadTicket(ticket);
    expect(rounding.engine.policyVersion).toBe(2);
    await expect(exact.engine.loadTicket(ticket)).rejects.toMatchObject({ code: "engine.poisoned" });
  });

  test("opens no ticket of another run, store or folder, of a value head, or where bytes are asked for", async () => {
    const { engine } = await start(kind);
    const open = (ticket: WeightTicket) => engine.opens(ticket);
    const { ticket } = await publish(newer(2, 1));
    expect(await open(ticket)).toBe(true);
    expect(await open({ ...ticket, nonce: "f".repeat(32) })).toBe(false);
    expect(await open((await publish(newer(2, 1), { name: "treadle-ab.7-weights" })).ticket)).toBe(false);
    const elsewhere = await publish(newer(2, 1), { root: join(folder, "elsewhere") });
    expect(await open(elsewhere.ticket)).toBe(false);
    await expect(engine.loadTicket(elsewhere.ticket)).rejects.toMatchObject(refused);
    const valueHead = { name: valueHeadName, shape: [6], dtype: "F32" as const, crc32: 0 };
    expect(await open(sealTicket({ ...ticket, tensors: [...ticket.tensors, valueHead] }))).toBe(false);
    const bytes = await start(kind, "bytes");
    expect(await bytes.engine.opens(ticket)).toBe(false);
  });
});

const isOtherDisk = async () => existsSync("/dev/shm") && (await stat("/dev/shm")).dev !== (await stat(tmpdir())).dev;
test.skipIf(!(await isOtherDisk()))("a file on another file system is copied", async () => {
  const root = await mkdtemp("/dev/shm/treadle-linked-");
  const before = hostFiles;
  hostFiles = { ...before, folder: root };
  try {
    const { engine, double } = await start("vllm");
    const weights = newer(2, 1);
    await engine.loadTicket((await publish(weights)).ticket);
    await rm(root, { recursive: true });
    await double.kill();
    await double.start();
    await engine.generate(prompts, sampling);
    expect(double.score(tokens)).toEqual(scoredBy(weights));
  } finally {
    hostFiles = before;
    await rm(root, { recursive: true, force: true });
  }
});
