/** Weights that one Python process sends to another over gloo, by the engines of both. */
import { mkdtemp, open, readFile, rm } from "node:fs/promises";
import { connect } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { WeightTicket } from "@treadle/contracts";
import { TorchEngine, weightsIdOf } from "@treadle/engines";
import fc from "fast-check";
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from "vitest";
import { lacksTorch } from "../../../test/support/torch.ts";
import { randomBatch, smallConfig } from "./small-transformer.ts";

const reason = lacksTorch();
const withValues = { ...smallConfig, valueHead: true };
const rows = { rows: 2, columns: 6, tokens: Int32Array.of(1, 2, 3, 4, 5, 6, 6, 5, 4, 3, 2, 1) };
/** of the test in which one stands still; elsewhere nobody is that slow */
const stillMs = 10_000;

async function published(trainer: TorchEngine): Promise<WeightTicket> {
  await trainer.forwardBackward(randomBatch(3, 6, trainer.policyVersion), { type: "cross-entropy" });
  await trainer.optimStep({ learningRate: 0.05 });
  const publication = await trainer.publish();
  return (publication as { ticket: WeightTicket }).ticket;
}

/** As `pullWeights` does it. */
async function send(from: TorchEngine, to: TorchEngine, ticket: WeightTicket): Promise<void> {
  const link = await from.offer(to.linkTo(ticket)!);
  await to.join(ticket, link);
  await to.loadTicket(ticket, link);
}

describe.skipIf(reason)(reason ?? "weights over a process group", () => {
  let folder: string;
  const engines: TorchEngine[] = [];
  const create = async (
    config: { readonly dtype?: "bfloat16"; readonly collective?: "off"; readonly collectiveTimeoutMs?: number } = {},
    options: Parameters<typeof TorchEngine.create>[2] = {},
    model: Parameters<typeof TorchEngine.create>[0] = withValues,
  ) => {
    const torch = { kind: "torch", weightsFolder: folder, collective: "gloo" } as const;
    const engine = await TorchEngine.create(model, { ...torch, ...config }, options);
    engines.push(engine);
    return engine;
  };
  let trainer: TorchEngine;
  let receiver: TorchEngine;
  let small: TorchEngine;
  beforeAll(async () => {
    folder = await mkdtemp(join(tmpdir(), "treadle-links-"));
    [trainer, receiver, small] = await Promise.all([create(), create(), create({ dtype: "bfloat16" })]);
  }, 600_000);
  afterAll(async () => {
    await Promise.all(engines.map((engine) => engine.close()));
    await rm(folder, { recursive: true });
  });

  test("W3 are those of the trainer, update after update, in whatever numbers, by one link for each receiver", async () => {
    for (const from of [trainer, small]) {
      const names = new Map<TorchEngine, string>();
      for (let step = 0; step < 3; step++) {
        const ticket = await published(from);
        expect(ticket.collective).toBe("gloo");
        for (const to of [receiver, from === trainer ? small : trainer]) {
          const known = to.linkTo(ticket);
          expect(known).toBe(names.get(to) ?? "");
          await send(from, to, ticket);
          names.set(to, to.linkTo(ticket)!);
          expect(to.weightsId).toBe(weightsIdOf(ticket));
          expect(to.policyVersion).toBe(from.policyVersion);
        }
        const [own, theirs] = [await from.logprobs(rows), await receiver.logprobs(rows)];
        if (from === trainer) expect(theirs).toEqual(own);
        for (const [at, each] of own.entries()) expect(Math.abs(each - theirs[at]!)).toBeLessThan(0.1);
      }
      expect(new Set(names.values()).size).toBe(2);
    }
  });

  test("W3 are what a file gives, of models of any size, from a trainer over several processes and of adapters, too", async () => {
    const models = fc.record({
      layers: fc.integer({ min: 1, max: 3 }),
      heads: fc.constantFrom(1, 2),
      width: fc.constantFrom(8, 16, 48),
      vocabSize: fc.integer({ min: 7, max: 90 }),
      valueHead: fc.boolean(),
      processes: fc.constantFrom(1, 2),
      lora: fc.boolean(),
    });
    const run = async ({ processes, lora, ...sizes }: typeof models extends fc.Arbitrary<infer T> ? T : never) => {
      const model = { ...smallConfig, ...sizes };
      const adapters = lora ? { lora: { rank: 2 } } : {};
      const [from, bySend, byFile] = await Promise.all([
        create(adapters as object, { processes }, model),
        create({}, {}, model),
        create({ collective: "off" }, {}, model),
      ]);
      const ticket = await published(from);
      expect(byFile.linkTo(ticket)).toBeUndefined();
      await send(from, bySend, ticket);
      await byFile.loadTicket(ticket);
      expect(await bySend.exportWeights()).toEqual(await byFile.exportWeights());
      await Promise.all([from, bySend, byFile].map((engine) => engine.close()));
    };
    await fc.assert(fc.asyncProperty(models, run), { numRuns: 2 });
  }, 600_000);

  test("W3 are refused where a byte is altered, or newer ones were published; the old ones and the link stay", async () => {
    const first = await published(trainer);
    await send(trainer, receiver, first);
    const [before, link] = [await receiver.exportWeights(), receiver.linkTo(first)];
    const refused = async (ticket: WeightTicket, message: RegExp) => {
      const error = { code: "engine.weights-mismatch", message: expect.stringMatching(message) };
      await expect(send(trainer, receiver, ticket)).rejects.toMatchObject(error);
      expect(receiver.weightsId).toBe(weightsIdOf(first));
      expect(await receiver.exportWeights()).toEqual(before);
      expect(receiver.linkTo(ticket)).toBe(link);
    };
    const altered = await published(trainer);
    const path = join(altered.store, altered.folder, "model.safetensors");
    {
      await using file = await open(path, "r+");
      await file.write(Buffer.of(0xab), 0, 1, (await readFile(path)).length - 2);
    }
    await refused(altered, new RegExp(`'${altered.tensors.at(-1)!.name}' has checksum`));
    const newest = await published(trainer);
    await refused(altered, /not there any more: newer ones were published/);
    await send(trainer, receiver, newest);
    expect(receiver.weightsId).toBe(weightsIdOf(newest));
  });

  test("fail with the side that stands still, in time; the next update makes the link again", async () => {
    const other = await create({ collectiveTimeoutMs: stillMs });
    await send(trainer, other, await published(trainer));
    let before = other.weightsId;
    let ticket = await published(trainer);
    // What was offered is sent at once: on a busy machine it may be there before the trainer stands still.
    for (let isLate = false; !isLate; ) {
      const link = await trainer.offer(other.linkTo(ticket)!);
      process.kill(trainer.pid!, "SIGSTOP");
      expect(link.place).toBeUndefined();
      try {
        const late = await other.loadTicket(ticket, link).then(
          () => undefined,
          (error: unknown) => error,
        );
        if (late === undefined) continue;
        isLate = true;
        expect(late).toMatchObject({
          code: "worker.late",
          message: expect.stringMatching(/the trainer's process did not answer within 10 s; see whether it is stopped/),
        });
        // It was offered before the trainer stood still, and is of no use now.
        await expect(other.loadTicket(ticket, link)).rejects.toMatchObject({ code: "link.closed" });
      } finally {
        process.kill(trainer.pid!, "SIGCONT");
        if (!isLate) {
          before = other.weightsId;
          ticket = await published(trainer);
        }
      }
    }
    expect(other.weightsId).toBe(before);
    expect(other.linkTo(ticket)).toBe("");
    await send(trainer, other, ticket);
    expect(other.weightsId).toBe(weightsIdOf(ticket));
    // A receiver that is gone costs the trainer nothing, and no other receiver anything.
    process.kill(other.pid!, "SIGKILL");
    await other.ended;
    const next = await published(trainer);
    await send(trainer, receiver, next);
    expect(receiver.weightsId).toBe(weightsIdOf(next));
  });

  test("of a trainer that dies are an error of the link, and leave the receiver as it was", async () => {
    const mortal = await create();
    await send(mortal, receiver, await published(mortal));
    const before = receiver.weightsId;
    const ticket = await published(mortal);
    const link = await mortal.offer(receiver.linkTo(ticket)!);
    process.kill(mortal.pid!, "SIGKILL");
    await mortal.ended;
    await expect(receiver.loadTicket(ticket, link)).rejects.toMatchObject({ code: "link.closed" });
    expect(receiver.weightsId).toBe(before);
    expect(await receiver.logprobs(rows)).toHaveLength(12);
  });

  test("are sent to nobody who has not the secret", async () => {
    const ticket = await published(trainer);
    const link = await trainer.offer("");
    const socket = connect(link.place!.port, link.place!.host);
    onTestFinished(() => void socket.destroy());
    socket.on("error", () => {});
    socket.write(Buffer.alloc(64));
    const said: Buffer[] = [];
    await new Promise<void>((resolve) => {
      socket.on("data", (data) => said.push(data)).on("close", () => resolve());
    });
    expect(Buffer.concat(said)).toHaveLength(32); // what is to be answered, and nothing else
    const forged = { ...link, place: { ...link.place!, secret: "0".repeat(64) } };
    await expect(receiver.join(ticket, forged)).rejects.toMatchObject({ code: "link.closed" });
    expect(receiver.linkTo(ticket)).toBe("");
    await send(trainer, receiver, ticket);
  });

  test("are refused before anything starts where they could not come", async () => {
    const start = (config: object) => TorchEngine.create(smallConfig, { kind: "torch", device: "cpu", ...config });
    const errors: [object, RegExp][] = [
      [{ collective: "nccl" }, /'nccl' joins CUDA devices, and this engine computes on 'cpu'; set it to 'gloo'/],
      [{ collective: "gloo", weightsBy: "bytes" }, /writes no file that could be sent; set weightsBy/],
    ];
    for (const [config, message] of errors)
      await expect(start(config)).rejects.toMatchObject({
        code: "config.invalid",
        message: expect.stringMatching(message),
      });
  });
});
