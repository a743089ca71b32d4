/** How weights come to an engine: by a ticket where both know tickets and it can map the device or open the files, else as bytes. */
import type { SharedWeights, WeightLink, Weights, WeightTicket } from "@treadle/contracts";
import { sealWeights, weightsIdOf } from "@treadle/engines";
import type { WorkerGroup } from "@treadle/runtime";
import { describe, expect, test } from "vitest";
import type { WeightForm } from "../src/engine-worker.ts";
import { TrainerWorker } from "../src/engine-worker.ts";
import { pullWeights } from "../src/weights.ts";
import { contextOf } from "./support/context.ts";

const bytesOf = (policyVersion: number): Weights =>
  sealWeights({ policyVersion, parameters: [{ name: "a", shape: [2], data: Float32Array.of(policyVersion, 1) }] });
const ticketOf = (policyVersion: number): WeightTicket => ({
  policyVersion,
  checksum: `${policyVersion}`.padStart(64, "0"),
  store: "/dev/shm/treadle-run-1-weights",
  nonce: "ab".repeat(16),
  folder: `version-${policyVersion}-1`,
  tensors: [{ name: "a", shape: [2], dtype: "F32", crc32: policyVersion }],
});
const onDevice = (policyVersion: number): WeightTicket => ({
  ...ticketOf(policyVersion),
  device: { uuid: "gpu", handle: "0f".repeat(64) },
});

/** An engine that publishes what the test says, and tells how often its bytes were asked for. */
class Publishing {
  policyVersion = 0;
  obstacle: string | undefined;
  isOnDevice = false;
  /** of its process */
  nonce = "ab";
  goneVersion: number | undefined;
  reading = Promise.resolve();
  readonly calls: string[] = [];
  exportWeights(): Weights {
    this.calls.push("export");
    return bytesOf(this.policyVersion);
  }
  async publish() {
    this.calls.push("publish");
    if (this.obstacle !== undefined) return { obstacle: this.obstacle };
    return { ticket: (this.isOnDevice ? onDevice : ticketOf)(this.policyVersion) };
  }
  async writeFile({ policyVersion }: WeightTicket) {
    this.calls.push("file");
    await this.reading;
    if (this.goneVersion === policyVersion) throw new Error("newer ones were published");
    return this.obstacle === undefined ? { ticket: ticketOf(policyVersion) } : { obstacle: this.obstacle };
  }
  async readTicket(ticket: WeightTicket): Promise<Weights> {
    this.calls.push("read");
    await this.reading;
    if (this.goneVersion === ticket.policyVersion) throw new Error("its file is gone");
    return { ...bytesOf(ticket.policyVersion), ticketChecksum: ticket.checksum };
  }
}

class Trainer extends TrainerWorker<object, never> {
  readonly warnings: string[] = [];
  readonly trained: Publishing;
  constructor(trained: Publishing) {
    const context = contextOf({}, "actor");
    const warnings: string[] = [];
    super({ ...context, log: { ...context.log, warn: (line: string) => warnings.push(line) } });
    this.warnings = warnings;
    this.trained = trained;
    this.engine = trained as never;
  }
  async trainOnce(): Promise<void> {
    this.trained.policyVersion++;
    await this.publish();
  }
}

type Asked = { readonly by: WeightForm; readonly known: string | undefined };
function groupOf(worker: Pick<Trainer, "weights">, before: () => unknown = () => {}) {
  const asked: Asked[] = [];
  const group = {
    groupName: "actor",
    size: 1,
    onRanks: () => group,
    offerWeights: (id: string, known: string) => ({ first: () => (worker as Trainer).offerWeights(id, known) }),
    weights: (known: string | undefined, by: WeightForm) => ({
      first: async () => {
        asked.push({ by, known });
        const answer = await worker.weights(known, by);
        await before();
        return answer;
      },
    }),
  };
  return { group: group as unknown as WorkerGroup<Trainer>, asked };
}

/** An engine that takes tickets as the test says. */
function receiver(
  options: {
    opens?: boolean | ((ticket: WeightTicket) => boolean);
    refuses?: (ticket: WeightTicket) => Error | undefined;
  } = {},
) {
  const order: string[] = [];
  const engine = {
    policyVersion: 0,
    weightsId: "initial" as string | undefined,
    pause: async () => void order.push("pause"),
    resume: () => void order.push("resume"),
    opens: async (ticket: WeightTicket) =>
      typeof options.opens === "function" ? options.opens(ticket) : (options.opens ?? true),
    loadWeights: async (weights: Weights) => {
      order.push(`bytes ${weights.policyVersion}`);
      engine.weightsId = weightsIdOf(weights);
    },
    loadTicket: async (ticket: WeightTicket) => {
      order.push(`${ticket.device ? "device" : "ticket"} ${ticket.policyVersion}`);
      const error = options.refuses?.(ticket);
      if (error) throw error;
      engine.weightsId = weightsIdOf(ticket);
    },
  };
  return { engine, order };
}

const pull = (engine: Parameters<typeof pullWeights>[0], group: WorkerGroup<Trainer>) =>
  pullWeights(engine, group, contextOf({}, "rollout"));

async function trainer({ isOnDevice = false } = {}): Promise<Trainer> {
  const worker = new Trainer(Object.assign(new Publishing(), { isOnDevice }));
  await worker.trainOnce();
  return worker;
}

test("W3 a ticket is taken between pause and resume, and its trainer exports no bytes", async () => {
  const worker = await trainer();
  const { group, asked } = groupOf(worker);
  const { engine, order } = receiver();
  await pull(engine, group);
  await pull(engine, group);
  expect(order).toEqual(["pause", "ticket 1", "resume"]);
  expect(engine.weightsId).toBe(weightsIdOf(ticketOf(1)));
  expect(asked.map(({ by }) => by)).toEqual(["device", "device"]);
  expect(worker.trained.calls).toEqual(["publish"]);
});

test("an engine that cannot open the files gets bytes, of the same name, which are read once for all of them", async () => {
  const worker = await trainer();
  for (let rank = 0; rank < 2; rank++) {
    const { group, asked } = groupOf(worker);
    const { engine, order } = receiver({ opens: false });
    await pull(engine, group);
    await pull(engine, group);
    expect(order).toEqual(["pause", "bytes 1", "resume"]);
    expect(engine.weightsId).toBe(weightsIdOf(ticketOf(1)));
    expect(asked.map(({ by }) => by)).toEqual(["device", "bytes", "device"]);
  }
  expect(worker.trained.calls).toEqual(["publish", "read"]);
});

test("an engine that knows no tickets is asked about none", async () => {
  const worker = await trainer();
  const { group, asked } = groupOf(worker);
  const { engine, order } = receiver();
  await pull(Object.assign(engine, { opens: undefined, loadTicket: undefined }) as never, group);
  expect(order).toEqual(["pause", "bytes 1", "resume"]);
  expect(asked).toEqual([{ by: "bytes", known: "initial" }]);
});

test("a trainer without a place for files brings bytes, and says so once", async () => {
  const worker = new Trainer(new Publishing());
  worker.trained.obstacle = "'/dev/shm' has '1' MiB free where '9' are needed";
  await worker.trainOnce();
  await worker.trainOnce();
  expect(worker.warnings).toEqual([expect.stringMatching(/through Node.*'9' are needed; set engine.weightsFolder/)]);
  const { engine, order } = receiver();
  await pull(engine, groupOf(worker).group);
  expect(order).toEqual(["pause", "bytes 2", "resume"]);
  worker.trained.obstacle = undefined;
  await worker.trainOnce();
  await pull(engine, groupOf(worker).group);
  expect(order.slice(3)).toEqual(["pause", "ticket 3", "resume"]);
});

describe("W3 a ticket that is refused", () => {
  const error = Object.assign(new Error("'a' has another checksum"), { code: "engine.weights-mismatch" });

  test("is the error of the pull, and the engine is resumed with what it had", async () => {
    const { engine, order } = receiver({ refuses: () => error });
    await expect(pull(engine, groupOf(await trainer()).group)).rejects.toBe(error);
    expect(order).toEqual(["pause", "ticket 1", "resume"]);
    expect(engine.weightsId).toBe("initial");
  });

  test("because newer weights have replaced it gives way to theirs", async () => {
    const worker = await trainer();
    const { engine, order } = receiver({ refuses: ({ policyVersion }) => (policyVersion < 3 ? error : undefined) });
    let steps = 0;
    const { group } = groupOf(worker, () => {
      if (steps++ < 2) void worker.trainOnce();
    });
    await pull(engine, group);
    expect(order).toEqual([
      "pause",
      "ticket 1",
      "resume",
      "pause",
      "ticket 2",
      "resume",
      "pause",
      "ticket 3",
      "resume",
    ]);
  });

  test("again and again ends the pull", async () => {
    const worker = await trainer();
    const { engine, order } = receiver({ refuses: () => error });
    const { group } = groupOf(worker, () => void worker.trainOnce());
    await expect(pull(engine, group)).rejects.toBe(error);
    expect(order.filter((each) => each.startsWith("ticket"))).toHaveLength(4);
  });

  test("by its form alone is refused before the engine is paused", async () => {
    const bad = { ...ticketOf(1), store: "/dev/shm/../etc" };
    const { engine, order } = receiver();
    const failed = pull(engine, groupOf({ weights: async () => bad as never }).group);
    await expect(failed).rejects.toMatchObject({ code: "link.protocol" });
    expect(order).toEqual([]);
  });
});

test("bytes that are asked for while newer weights take the file's place are those of the newer ones", async () => {
  const worker = await trainer();
  let go!: () => void;
  worker.trained.goneVersion = 1;
  worker.trained.reading = new Promise((resolve) => {
    go = resolve;
  });
  const reading = worker.weights("initial");
  await worker.trainOnce();
  go();
  expect((await reading)?.policyVersion).toBe(2);
});

test("bytes whose file is gone without newer weights are an error", async () => {
  const worker = await trainer();
  worker.trained.goneVersion = 1;
  await expect(worker.weights("initial")).rejects.toThrow("its file is gone");
  worker.trained.goneVersion = undefined;
  expect((await worker.weights("initial"))?.policyVersion).toBe(1);
});

describe("W3 weights over a process group", () => {
  const collective = "gloo" as const;
  const place = { host: "127.0.0.1", port: 1, secret: "0f".repeat(32) };
  const gone = Object.assign(new Error("the link has failed"), { code: "link.closed" });

  /** The trainer's engine knows a link as long as it has not failed. */
  function linking({ before = () => {}, closes = (): boolean => false, isFar = true } = {}) {
    const made: string[] = [];
    const trained = Object.assign(new Publishing(), {
      offer: async (known: string) => {
        if (made.includes(known)) return { name: known };
        made.push(`${made.length + 1}`.padStart(16, "0"));
        return { name: made.at(-1)!, place };
      },
    });
    const publish = trained.publish.bind(trained);
    trained.publish = async () => {
      const { ticket } = (await publish()) as { ticket: WeightTicket };
      return { ticket: { ...ticket, collective, nonce: trained.nonce.repeat(16) } };
    };
    const worker = new Trainer(trained);
    const { engine, order } = receiver({ opens: !isFar });
    const { loadTicket } = engine;
    let known = "";
    Object.assign(engine, {
      linkTo: (ticket: WeightTicket) => (ticket.collective === collective ? known : undefined),
      join: async (_: WeightTicket, link: WeightLink) => {
        order.push(link.place ? `join ${Number(link.name)}` : "joined");
        known = link.name;
        before();
      },
      loadTicket: async (ticket: WeightTicket, link?: WeightLink) => {
        order.push(`link ${Number(link?.name)}`);
        if (closes()) {
          known = "";
          throw gone;
        }
        await loadTicket(ticket);
      },
    });
    return { worker, trained, engine, order };
  }

  test("come before files and bytes, by a link that is made once and met before the devices are locked", async () => {
    for (const isFar of [true, false]) {
      const { worker, engine, order } = linking({ isFar });
      await worker.trainOnce();
      await pull(engine, groupOf(worker).group);
      await pull(engine, groupOf(worker).group);
      await worker.trainOnce();
      await pull(engine, groupOf(worker).group);
      const loaded = (version: number) => ["pause", "link 1", `ticket ${version}`, "resume"];
      expect(order).toEqual(["join 1", ...loaded(1), "joined", ...loaded(2)]);
      expect(worker.trained.calls).toEqual(["publish", "publish"]);
    }
  });

  test("that newer ones replace before a link is there are followed three times, and no more", async () => {
    for (const numReplaced of [3, 4]) {
      const { worker, engine, order } = linking();
      await worker.trainOnce();
      let left = numReplaced;
      const { group, asked } = groupOf(worker, () => (left-- > 0 ? worker.trainOnce() : undefined));
      const pulled = pull(engine, group);
      if (numReplaced <= 3) {
        await pulled;
        expect(order).toEqual(["join 1", "pause", "link 1", "ticket 4", "resume"]);
      } else {
        const message = expect.stringMatching(/^'actor\/0' published newer weights '4' times .*version '4'.*at most 3/);
        await expect(pulled).rejects.toMatchObject({ code: "worker.late", message });
        expect(order).toEqual([]);
        expect(engine.weightsId).toBe("initial");
      }
      expect(asked).toHaveLength(4);
    }
  });

  test("come as before to an engine that joins none", async () => {
    const { worker } = linking();
    await worker.trainOnce();
    const { engine, order } = receiver();
    await pull(engine, groupOf(worker).group);
    expect(order).toEqual(["pause", "ticket 1", "resume"]);
  });

  test("whose link fails are the error of the pull, which leaves the old ones; the next pull meets again", async () => {
    let fails = true;
    const { worker, engine, order } = linking({ closes: () => fails });
    await worker.trainOnce();
    await expect(pull(engine, groupOf(worker).group)).rejects.toBe(gone);
    expect(order).toEqual(["join 1", "pause", "link 1", "resume"]);
    expect(engine.weightsId).toBe("initial");
    fails = false;
    await pull(engine, groupOf(worker).group);
    expect(order.slice(4)).toEqual(["join 2", "pause", "link 2", "ticket 1", "resume"]);
  });

  test("whose trainer has started again meanwhile, with the same weights, are asked of it once more", async () => {
    let failures = 0;
    const { worker, trained, engine, order } = linking({ closes: () => failures++ === 0 });
    await worker.trainOnce();
    const { group } = groupOf(worker);
    const publishAgain = async () => {
      trained.nonce = "cd";
      trained.policyVersion = 0;
      await worker.trainOnce();
    };
    const { loadTicket } = engine;
    engine.loadTicket = async (...given) => {
      try {
        await loadTicket(...given);
      } catch (error) {
        await publishAgain();
        throw error;
      }
    };
    await pull(engine, group);
    expect(order).toEqual(["join 1", "pause", "link 1", "resume", "join 2", "pause", "link 2", "ticket 1", "resume"]);
  });

  test("that newer ones replace before the two have met give way to those", async () => {
    const { worker, engine, order } = linking();
    await worker.trainOnce();
    let isReplaced = false;
    const { group } = groupOf(worker, async () => {
      if (!isReplaced) await worker.trainOnce();
      isReplaced = true;
    });
    await pull(engine, group);
    expect(order).toEqual(["join 1", "pause", "link 1", "ticket 2", "resume"]);
  });
});

describe("W3 weights on a device", () => {
  test("are mapped by engines on it, and no file of them is written", async () => {
    const worker = await trainer({ isOnDevice: true });
    const { group, asked } = groupOf(worker);
    const { engine, order } = receiver();
    await pull(engine, group);
    await pull(engine, group);
    expect(order).toEqual(["pause", "device 1", "resume"]);
    expect(asked.map(({ by }) => by)).toEqual(["device", "device"]);
    expect(worker.trained.calls).toEqual(["publish"]);
  });

  test("come in one file to all engines that are elsewhere, and as its bytes to those that see no file", async () => {
    const worker = await trainer({ isOnDevice: true });
    for (let rank = 0; rank < 2; rank++) {
      const { group, asked } = groupOf(worker);
      const { engine, order } = receiver({ opens: ({ device }) => device === undefined });
      await pull(engine, group);
      expect(order).toEqual(["pause", "ticket 1", "resume"]);
      expect(asked.map(({ by }) => by)).toEqual(["device", "ticket"]);
    }
    const { engine, order } = receiver({ opens: false });
    await pull(engine, groupOf(worker).group);
    expect(order).toEqual(["pause", "bytes 1", "resume"]);
    expect(worker.trained.calls).toEqual(["publish", "file", "read"]);
  });

  test("come in a file where the device is taken from them before they are mapped", async () => {
    const worker = await trainer({ isOnDevice: true });
    const { group, asked } = groupOf(worker);
    const { engine, order } = receiver({
      refuses: ({ device }) => (device ? new Error("they have left the device") : undefined),
    });
    await pull(engine, group);
    expect(order).toEqual(["pause", "device 1", "resume", "pause", "ticket 1", "resume"]);
    expect(asked.map(({ by }) => by)).toEqual(["device", "ticket"]);
    expect(engine.weightsId).toBe(weightsIdOf(ticketOf(1)));
  });

  test("whose file is refused, too, are the error of the pull", async () => {
    const error = new Error("'a' has another checksum");
    const { engine, order } = receiver({ refuses: () => error });
    await expect(pull(engine, groupOf(await trainer({ isOnDevice: true })).group)).rejects.toBe(error);
    expect(order).toEqual(["pause", "device 1", "resume", "pause", "ticket 1", "resume"]);
  });

  test("that newer ones replace while a file is asked for give way to those, published or about to be", async () => {
    const worker = await trainer({ isOnDevice: true });
    let go!: () => void;
    worker.trained.goneVersion = 1;
    worker.trained.reading = new Promise((resolve) => {
      go = resolve;
    });
    const asking = worker.weights("initial", "ticket");
    const publish = worker.trained.publish.bind(worker.trained);
    let answer!: () => void;
    worker.trained.publish = async () => {
      await new Promise<void>((resolve) => {
        answer = resolve;
      });
      return publish();
    };
    const training = worker.trainOnce();
    go();
    await new Promise(setImmediate);
    answer();
    await training;
    expect((await asking)?.policyVersion).toBe(2);
  });

  test("that no file system has room for go as bytes, of the same name, with a warning", async () => {
    const worker = await trainer({ isOnDevice: true });
    worker.trained.obstacle = "'/dev/shm' has '1' MiB free where '9' are needed";
    for (let rank = 0; rank < 2; rank++) {
      const { engine, order } = receiver({ opens: ({ device }) => device === undefined });
      await pull(engine, groupOf(worker).group);
      expect(order).toEqual(["pause", "bytes 1", "resume"]);
      expect(engine.weightsId).toBe(weightsIdOf(onDevice(1)));
    }
    expect(worker.warnings).toEqual([expect.stringMatching(/through Node.*'9' are needed; set engine.weightsFolder/)]);
  });

  test("that no file system has room for, and that are trained already, are an error which names the remedy", async () => {
    const worker = await trainer({ isOnDevice: true });
    worker.trained.obstacle = "'/dev/shm' has '1' MiB free where '9' are needed";
    worker.trained.policyVersion = 2; // in the middle of a call
    await expect(worker.weights("initial", "ticket")).rejects.toMatchObject({
      code: "disk.full",
      message: expect.stringMatching(/version '1'.*'1' MiB free.*set weightsFolder of the engine/),
    });
    worker.trained.obstacle = undefined;
    expect(await worker.weights("initial", "ticket")).toEqual(ticketOf(1));
  });
});

describe("W3 an engine that computes with its trainer's module", () => {
  /** One whose module others share; what it has trained since is newer. */
  class Sharing extends Publishing {
    get shared() {
      return { process: "p", policyVersion: this.policyVersion };
    }
  }
  const sharing = async () => {
    const worker = new Trainer(new Sharing());
    await worker.trainOnce();
    return worker;
  };
  const sharer = (trainerRank = 0) => {
    const { engine, order } = receiver();
    const takeShared = async (weights: SharedWeights) => void order.push(`${weights.process} ${weights.policyVersion}`);
    return { engine: Object.assign(engine, { trainerRank, takeShared }), order };
  };

  test("takes what the module has, without a pause, and nothing is published or exported", async () => {
    const worker = await sharing();
    const { group, asked } = groupOf(worker);
    const { engine, order } = sharer();
    await pull(engine, group);
    await worker.trainOnce();
    await pull(engine, group);
    expect(order).toEqual(["p 1", "p 2"]);
    expect(asked.map(({ by }) => by)).toEqual(["shared", "shared"]);
    expect(worker.trained.calls).toEqual([]);
  });

  test("asks the rank whose module it is", async () => {
    const { group } = groupOf(await sharing());
    const asked: number[] = [];
    const onRanks = (rank: number) => {
      asked.push(rank);
      return group;
    };
    const of = { ...group, size: 4, onRanks };
    await pull(sharer(3).engine, of as never);
    expect(asked).toEqual([3]);
  });

  test("has others beside it that share nothing: for them it is published once, when they ask", async () => {
    const worker = await sharing();
    for (let rank = 0; rank < 2; rank++) {
      const { engine, order } = receiver();
      await pull(engine, groupOf(worker).group);
      await pull(engine, groupOf(worker).group);
      expect(order).toEqual(["pause", "ticket 1", "resume"]);
    }
    expect(worker.trained.calls).toEqual(["publish"]);
    // What is published while it trains on gives way to the newer.
    await worker.trainOnce();
    const publish = worker.trained.publish.bind(worker.trained);
    let answer!: () => void;
    worker.trained.publish = async () => {
      const old = await publish();
      worker.trained.publish = publish;
      await new Promise<void>((resolve) => {
        answer = resolve;
      });
      return old;
    };
    const asking = worker.weights("initial", "ticket");
    await new Promise(setImmediate);
    await worker.trainOnce();
    answer();
    expect((await asking)?.policyVersion).toBe(3);
  });

  test("is told of a trainer that shares its module with nobody", async () => {
    const { engine } = sharer();
    await expect(pull(engine, groupOf(await trainer()).group)).rejects.toMatchObject({
      code: "config.invalid",
      message: expect.stringMatching(/shares its own with nobody; set engine.process/),
    });
  });
});
