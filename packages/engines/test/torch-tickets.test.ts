/** Weights that one Python process writes and another reads. */
import { execFileSync } from "node:child_process";
import { existsSync } from "node:fs";
import { chmod, mkdir, mkdtemp, open, readdir, rm, stat } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { WeightTicket } from "@treadle/contracts";
import { TorchEngine, weightsIdOf } from "@treadle/engines";
import { afterAll, beforeAll, describe, expect, onTestFinished, test, vi } from "vitest";
import { lacksTorch } from "../../../test/support/torch.ts";
import { randomBatch, smallConfig } from "./small-transformer.ts";

const reason = lacksTorch();
const withValues = { ...smallConfig, valueHead: true };
const rows = { rows: 2, columns: 6, tokens: Int32Array.of(1, 2, 3, 4, 5, 6, 6, 5, 4, 3, 2, 1) };
const gone = (path: string) => vi.waitFor(() => expect(existsSync(path)).toBe(false), 10_000);

describe.skipIf(reason)(reason ?? "weights by a ticket", () => {
  let folder: string;
  let trainer: TorchEngine;
  let receiver: TorchEngine;
  let small: TorchEngine;
  let other: TorchEngine;
  const create = (dtype: "float32" | "bfloat16" = "float32", weightsFolder = folder) =>
    TorchEngine.create(withValues, { kind: "torch", dtype, weightsFolder });
  beforeAll(async () => {
    folder = await mkdtemp(join(tmpdir(), "treadle-tickets-"));
    [trainer, receiver, small, other] = await Promise.all([create(), create(), create("bfloat16"), create("bfloat16")]);
  }, 600_000);
  afterAll(async () => {
    await Promise.all([trainer, receiver, small, other].map((engine) => engine?.close()));
    expect(await readdir(folder)).toEqual([]);
    await rm(folder, { recursive: true });
  });

  async function published(engine = trainer): Promise<WeightTicket> {
    await engine.forwardBackward(randomBatch(3, 6, engine.policyVersion), { type: "cross-entropy" });
    await engine.optimStep({ learningRate: 0.05 });
    const publication = await engine.publish();
    expect(publication).toHaveProperty("ticket");
    return (publication as { ticket: WeightTicket }).ticket;
  }

  test("W3 reach another process whole, which then scores as the trainer does", async () => {
    for (let step = 0; step < 2; step++) {
      const before = receiver.weightsId;
      const ticket = await published();
      expect(await receiver.opens(ticket)).toBe(true);
      await receiver.loadTicket(ticket);
      expect(receiver.policyVersion).toBe(trainer.policyVersion);
      expect(receiver.weightsId).toBe(weightsIdOf(ticket));
      expect(receiver.weightsId).not.toBe(before);
      expect(await receiver.logprobs(rows)).toEqual(await trainer.logprobs(rows));
      expect(await receiver.values(rows)).toEqual(await trainer.values(rows));
      const { ticketChecksum, ...exported } = await receiver.exportWeights();
      expect(exported).toEqual(await trainer.exportWeights());
      expect(ticketChecksum).toBe(ticket.checksum);
      await receiver.loadWeights({ ...exported, ticketChecksum });
      expect(receiver.weightsId).toBe(weightsIdOf(ticket));
    }
  });

  test("of a trainer in bfloat16 have its 16 bits, and its log-probabilities", async () => {
    const ticket = await published(small);
    const types = ticket.tensors.map(({ name, dtype }) => [name.startsWith("value"), dtype]);
    for (const [isValue, dtype] of types) expect(dtype).toBe(isValue ? "F32" : "BF16");
    await other.loadTicket(ticket);
    expect(await other.logprobs(rows)).toEqual(await small.logprobs(rows));
    // One in float32 has the numbers that the trainer computes with.
    await receiver.loadTicket(ticket);
    const [exact, rounded] = await Promise.all([receiver.logprobs(rows), small.logprobs(rows)]);
    for (const [at, logprob] of rounded.entries()) expect(Math.abs(logprob - exact[at]!)).toBeLessThan(0.1);
  });

  test("are read as bytes for those that cannot open the file, and have one name either way", async () => {
    const ticket = await published();
    const weights = await trainer.readTicket(ticket);
    expect(weights.parameters).toEqual((await trainer.exportWeights()).parameters);
    expect(weightsIdOf(weights)).toBe(weightsIdOf(ticket));
    await receiver.loadWeights(weights);
    expect(receiver.weightsId).toBe(weightsIdOf(ticket));
    const rounded = await published(small);
    const [, expected] = [await receiver.loadTicket(rounded), await receiver.exportWeights()];
    expect((await small.readTicket(rounded)).parameters).toEqual(expected.parameters);
  });

  test("W3 are refused with the tensor's name where the file is altered, cut short or gone; the old ones stay", async () => {
    const first = await published();
    await receiver.loadTicket(first);
    const [before, version] = [await receiver.exportWeights(), receiver.policyVersion];
    const refuse = async (ticket: WeightTicket, message: RegExp) => {
      const refused = { code: "engine.weights-mismatch", message: expect.stringMatching(message) };
      await expect(receiver.loadTicket(ticket)).rejects.toMatchObject(refused);
      expect(receiver.weightsId).toBe(weightsIdOf(first));
      expect(receiver.policyVersion).toBe(version);
      expect(await receiver.exportWeights()).toEqual(before);
    };
    const fileOf = ({ store, folder: own }: WeightTicket) => join(store, own, "model.safetensors");

    const altered = await published();
    const { size } = await stat(fileOf(altered));
    const lastName = altered.tensors.at(-1)!.name;
    await using file = await open(fileOf(altered), "r+");
    await file.write(Buffer.of(0xab), 0, 1, size - 2);
    await refuse(altered, new RegExp(`'${lastName}' has checksum`));
    await expect(trainer.readTicket(altered)).rejects.toMatchObject({
      code: "engine.weights-mismatch",
      message: expect.stringContaining(`'${lastName}'`),
    });

    const cut = await published();
    await using shorter = await open(fileOf(cut), "r+");
    await shorter.truncate(size - 1);
    await refuse(cut, new RegExp(`ends in '${lastName}'`));

    const replaced = await published();
    await published();
    await refuse(replaced, /not there any more/);
    await refuse({ ...(await published()), nonce: "0".repeat(32) }, /another nonce/);
    await refuse({ ...(await published()), checksum: "0".repeat(64) }, /checksum/);
    await receiver.loadTicket(await published());
    expect(receiver.policyVersion).toBe(trainer.policyVersion);
  });

  test("W3 come while it generates: each completion is of one version", async () => {
    await receiver.loadTicket(await published());
    const ticket = await published();
    const prompts = Array.from({ length: 40 }, (_, index) => Int32Array.of(1 + (index % 6)));
    const generating = receiver.generate(prompts, { maxTokens: 5, temperature: 1, stopTokens: [], seed: 3 });
    await receiver.pause();
    await receiver.loadTicket(ticket);
    receiver.resume();
    for (const { tokens, logprobs, policyVersion } of await generating) {
      expect(tokens).toHaveLength(logprobs.length);
      expect([ticket.policyVersion - 1, ticket.policyVersion]).toContain(policyVersion);
    }
  });

  test("are not opened where another's nonce is found, or another run's name", async () => {
    const ticket = await published();
    expect(await receiver.opens({ ...ticket, nonce: "0".repeat(32) })).toBe(false);
    expect(await receiver.opens({ ...ticket, store: join(folder, "nothing") })).toBe(false);
    expect(await receiver.opens({ ...ticket, store: "/proc/self" })).toBe(false);
    const hostFiles = {
      folder: "/dev/shm",
      ownPrefix: "treadle-other-1-",
      leftPrefix: "treadle-other-left-",
      runPrefix: "treadle-other-",
    };
    const stranger = await TorchEngine.create(withValues, { kind: "torch", weightsFolder: folder }, { hostFiles });
    onTestFinished(() => stranger.close());
    expect(await stranger.opens(ticket)).toBe(false);
    await expect(stranger.loadTicket(ticket)).rejects.toMatchObject({
      message: expect.stringContaining("of this run"),
    });
  });

  test("travel as bytes where no file can be written, with the reason, or where the configuration says so", async () => {
    const closed = join(folder, "closed");
    await mkdir(closed, { mode: 0o700 });
    const file = await open(join(closed, "file"), "w");
    await file.close();
    const stuck = await create("float32", join(closed, "file"));
    expect(await stuck.publish()).toEqual({ obstacle: expect.stringContaining("cannot be written to") });
    await stuck.close();
    await chmod(closed, 0o700);
    await rm(closed, { recursive: true });
    const plain = await TorchEngine.create(withValues, { kind: "torch", weightsBy: "bytes" });
    onTestFinished(() => plain.close());
    expect(await plain.publish()).toBeUndefined();
    expect(await plain.opens(await published())).toBe(false);
  });

  test("a receiver that is killed while it reads leaves nothing, and the ticket stays good", async () => {
    const ticket = await published();
    const loading = other.loadTicket(ticket).catch((error: unknown) => error);
    process.kill(other.pid!, "SIGKILL");
    await loading;
    await other.ended;
    await receiver.loadTicket(ticket);
    expect((await readdir(ticket.store)).sort()).toEqual(["nonce", "owner", ticket.folder]);
  });

  test("TP1 nothing stays when the process is killed while it writes, or its parent is", async () => {
    const { store } = await published();
    const writing = trainer.publish().catch(() => {});
    process.kill(trainer.pid!, "SIGKILL");
    await writing;
    await trainer.ended;
    await gone(store);

    const source = new URL("../src/index.ts", import.meta.url).href;
    const script = `const { TorchEngine } = await import(${JSON.stringify(source)});
      const settings = { kind: "torch", weightsFolder: ${JSON.stringify(folder)} };
      const engine = await TorchEngine.create(${JSON.stringify(smallConfig)}, settings);
      const { ticket } = await engine.publish();
      process.stdout.write(ticket.store, () => process.kill(process.pid, "SIGKILL"));`;
    const flags = ["--conditions=source", "--import", "tsx", "--input-type=module", "-e", script];
    let said = "";
    try {
      execFileSync(process.execPath, flags, { encoding: "utf8", stdio: ["ignore", "pipe", "inherit"] });
    } catch (error) {
      said = (error as { stdout: string }).stdout;
    }
    expect(said).toContain(folder);
    await gone(said);
  }, 60_000);
});
