/**
 * An engine on PyTorch in the process of the trainer on its device, with the module that is trained: it generates and scores, and has no
 * weights of its own.
 *
 * It has attached to that process and ends none: with the process end its calls, and it itself (`ended`).
 * OM1 what it says of its weights is what the process said last: a version that has been trained since is told as that, and
 *     `weightsId` is undefined until it takes what the trainer has published.
 * OM2 it changes nothing that the trainer has: what would is refused here, and by the process (TS1).
 */
import { randomUUID } from "node:crypto";
import { setTimeout as delay } from "node:timers/promises";
import { type HostFiles, type ReleasableTag, type SharedWeights, TreadleError } from "@treadle/contracts";
import type { z } from "zod";
import { TransformerConfig } from "../embedded/transformer-config.ts";
import type { GenerationEngine, TrainingEngine } from "../engine.ts";
import {
  checkSameModule,
  checkShared,
  chooseOffer,
  type ModuleOffer,
  moduleOffers,
  type Rank,
  requireHostFiles,
  settingsOf,
} from "./module-offer.ts";
import { type Message, TorchClient } from "./torch-client.ts";
import { TorchClientEngine } from "./torch-client-engine.ts";
import { TorchConfig } from "./torch-config.ts";
import { type Described, describedBy } from "./torch-messages.ts";

const pollMs = 100;
const patienceMs = 30_000;

type Attachment = {
  readonly offer: ModuleOffer;
  readonly client: TorchClient;
  readonly described: Described;
  readonly ended: Promise<TreadleError>;
  readonly leave: () => void;
  /** as if the process had ended: it may be stopped, and its trainer's rank ends it */
  readonly lose: (why: string) => void;
};

export class SharedTorchEngine extends TorchClientEngine implements GenerationEngine, TrainingEngine {
  readonly #attachment: Attachment;
  #policyVersion = 0;
  #serial = 0;
  /** of the weights that it has taken */
  #takenSerial: number | undefined;

  private constructor(config: TransformerConfig, attachment: Attachment) {
    const { client, described, ended: processEnded } = attachment;
    // Its weights die with its process: nothing that was told could go on.
    super({ config, client, described, streamMs: "never", processEnded, isLoaded: false, isShared: true });
    this.#attachment = attachment;
  }

  /**
   * Waits for the trainer on the rank's devices, for `startTimeoutMs`; nothing is restored on its device yet. `log` gets what it waits for
   * once that takes longer than `patienceMs` (30 s). Throws `config.invalid` where its module cannot be shared, or none is there.
   */
  static async attach(
    model: z.input<typeof TransformerConfig>,
    torch: z.input<typeof TorchConfig>,
    { rank, hostFiles, ...waiting }: { readonly rank: Rank; readonly hostFiles: HostFiles | undefined } & Waiting,
  ): Promise<SharedTorchEngine> {
    const [config, settings] = [TransformerConfig.parse(model), TorchConfig.parse(torch)];
    checkShared(settings, 1, true);
    const attachment = await attachTo(config, settings, { rank, hostFiles: requireHostFiles(hostFiles), ...waiting });
    const engine = new SharedTorchEngine(config, attachment);
    try {
      await engine.look();
      return engine;
    } catch (error) {
      await engine.close();
      throw error;
    }
  }

  get trainerRank(): number {
    return this.#attachment.offer.rank;
  }

  get policyVersion(): number {
    return this.#policyVersion;
  }

  /** OM1. */
  get weightsId(): string | undefined {
    if (this.#takenSerial !== this.#serial) return undefined;
    return `shared-${this.#attachment.described.epoch}-${this.#serial}`;
  }

  async takeShared({ process, policyVersion }: SharedWeights): Promise<void> {
    const { offer, described } = this.#attachment;
    const trainer = `'${offer.component}/${offer.rank}'`;
    if (process !== described.epoch) {
      throw new TreadleError(
        "service.failed",
        `this engine computes with the module of ${trainer}, and the weights are in another process, which trains something else or has started again; pull those of ${trainer}, or set engine.process to 'own'`,
      );
    }
    await this.look();
    if (this.#policyVersion < policyVersion) {
      throw new TreadleError(
        "engine.weights-mismatch",
        `the module of ${trainer} has weights of version '${this.#policyVersion}' where '${policyVersion}' was published`,
      );
    }
    this.#takenSerial = this.#serial;
  }

  /** The process goes on. */
  async close(): Promise<void> {
    this.isClosed = true;
    await this.release().catch(() => {}); // with the attachment ends what is left
    this.#attachment.leave();
  }

  // OM2.

  loadWeights(): Promise<void> {
    return this.#refuse("loadWeights");
  }
  exportWeights(): Promise<never> {
    return this.#refuse("exportWeights");
  }
  forwardBackward(): Promise<never> {
    return this.#refuse("forwardBackward");
  }
  optimStep(): Promise<never> {
    return this.#refuse("optimStep");
  }
  gradients(): Promise<never> {
    return this.#refuse("gradients");
  }
  setGradients(): Promise<void> {
    return this.#refuse("setGradients");
  }
  load(): Promise<void> {
    return this.#refuse("load");
  }
  save(): AsyncIterable<Uint8Array> {
    const refused = () => this.#refuse("save");
    return { [Symbol.asyncIterator]: () => ({ next: refused }) };
  }

  async #refuse(method: string): Promise<never> {
    const { component, rank } = this.#attachment.offer;
    throw new TreadleError(
      "engine.invalid-request",
      `'${method}' needs weights of the engine's own, and it shares those of '${component}/${rank}'; ask the trainer, or set engine.process to 'own', as for what is scored against a reference`,
    );
  }

  protected override failed(error: unknown): void {
    if (error instanceof TreadleError && error.code === "service.failed") this.#attachment.lose(error.message);
  }

  protected override looked(reply: Message): void {
    this.#policyVersion = reply["policy_version"] as number;
    this.#serial = reply["weights_serial"] as number;
  }

  /** It needs what is trained of none. */
  protected override restorable(tags: readonly ReleasableTag[]): readonly ReleasableTag[] {
    return tags.filter((tag) => tag !== "optimiser");
  }
}

type Waiting = { readonly log?: (line: string) => void; readonly patienceMs?: number };

async function attachTo(
  model: TransformerConfig,
  torch: TorchConfig,
  { rank, hostFiles, log, ...waiting }: { readonly rank: Rank; readonly hostFiles: HostFiles } & Waiting,
): Promise<Attachment> {
  const deadline = Date.now() + torch.startTimeoutMs;
  const sayAt = Date.now() + (waiting.patienceMs ?? patienceMs);
  let hasSaid = log === undefined;
  let last: Seen = { offers: [] };
  while (Date.now() < deadline) {
    const offers = await moduleOffers(hostFiles);
    last = { offers };
    const offer = chooseOffer(offers, rank);
    if (offer) {
      checkSameModule(offer, settingsOf(model, torch), rank);
      try {
        return await attach(offer, torch);
      } catch (error) {
        if (!(error instanceof TreadleError) || error.code !== "service.failed") throw error;
        last = { offers, error }; // it is about to go, or has gone: its trainer starts again
      }
    } else if (isComplete(offers)) break;
    if (!hasSaid && Date.now() >= sayAt) {
      log?.(
        `waits for a trainer on its devices ('${rank.devices.join(",")}') whose engine.process is 'shared', too: ${found(last)}`,
      );
      hasSaid = true;
    }
    await delay(pollMs);
  }
  throw missing(torch, rank, last);
}

/** No other rank of these trainers is still to come. */
const isComplete = (offers: readonly ModuleOffer[]): boolean =>
  offers.length > 0 &&
  offers.every(
    ({ component, worldSize }) =>
      new Set(offers.filter((other) => other.component === component).map(({ rank }) => rank)).size === worldSize,
  );

async function attach(offer: ModuleOffer, torch: TorchConfig): Promise<Attachment> {
  const trainer = `'${offer.component}/${offer.rank}'`;
  const client = `${process.pid}-${randomUUID()}`;
  let end!: (error: TreadleError) => void;
  const ended = new Promise<TreadleError>((resolve) => {
    end = resolve;
  });
  const { address, token } = offer;
  const over = (cause?: unknown) => {
    const why = cause instanceof Error ? `: ${cause.message}` : "";
    end(
      new TreadleError(
        "service.failed",
        `the process of ${trainer}, whose module this engine shares, has ended or cannot be reached${why}`,
        { cause },
      ),
    );
  };
  const lose = (why: string) => over(new Error(why));
  const called = await TorchClient.create({ address, token, client, ended, end: lose }, torch);
  const lease = called.attach(client);
  lease.on("error", over).on("end", over);
  const isHere = new Promise<undefined>((resolve) => void lease.once("data", () => resolve(undefined)));
  const leave = () => {
    lease.cancel();
    called.close();
  };
  try {
    const failed = await Promise.race([isHere, ended]);
    if (failed) throw failed;
    return { offer, client: called, described: describedBy(await called.unary("Describe", {})), ended, leave, lose };
  } catch (error) {
    leave();
    throw error;
  }
}

type Seen = { readonly offers: readonly ModuleOffer[]; readonly error?: unknown };

function found({ offers }: Seen): string {
  const others = offers.map((offer) => `'${offer.component}/${offer.rank}' on '${offer.devices.join(",")}'`);
  return others.length > 0 ? `those of this host are ${others.join(", ")}` : "none is on this host";
}

function missing({ startTimeoutMs }: TorchConfig, { component, rank, devices }: Rank, seen: Seen): TreadleError {
  const { error } = seen;
  const why = error instanceof Error ? `; the last attempt failed: ${error.message}` : "";
  return new TreadleError(
    "config.invalid",
    `engine.process of '${component}' is 'shared', but no trainer whose engine.process is 'shared' is on the devices of '${component}/${rank}' ('${devices.join(",")}') within engine.startTimeoutMs ('${startTimeoutMs}'): ${found(seen)}${why}; ` +
      `place '${component}' on the trainer's devices, or set its engine.process to 'own'`,
    { cause: error },
  );
}
