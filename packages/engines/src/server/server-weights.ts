import { rm } from "node:fs/promises";
import { TreadleError } from "@treadle/contracts";
import type { WeightsDigest } from "./model-folder.ts";
import type { ServerProtocol } from "./server-protocol.ts";

/** Weights that a server has, or is to have. */
export type LoadedFolder = {
  readonly folder: string;
  readonly policyVersion: number;
  /** as `Engine.weightsId` */
  readonly weightsId: string;
  /** of what lies there; undefined for the model's own folder, and where nobody knows what it is to the server */
  readonly digest: WeightsDigest | undefined;
  /** throws where the folder is not as it was made (AS7) */
  readonly verify: () => Promise<void>;
  /** it has an adapter alone, over the model's own weights */
  readonly isAdapter?: boolean;
};

type Loaded = LoadedFolder & {
  /** of these weights alone: it keeps prefixes apart, and names an adapter */
  readonly label: string;
  /** what the server calls its whole weights; another one than `label` below an adapter */
  readonly serverLabel: string;
  readonly checksum: string | undefined;
};

/** The engine around a server's weights. */
export type WeightsHost = {
  /** ends what runs on the server */
  readonly drain: () => Promise<void>;
  /** tells those that wait that something has changed */
  readonly wake: () => void;
  /** runs when nothing else loads */
  readonly inTurn: (run: () => Promise<void>) => Promise<void>;
  readonly warn: (message: string) => void;
};

type Settings = {
  /** of the server, for messages */
  readonly server: string;
  /** begins every label; no other engine has it */
  readonly name: string;
  /** never removed */
  readonly ownFolder: string;
  /** throws unless that folder is as it was */
  readonly verifyOwn: () => Promise<void>;
  readonly updateTimeoutMs: number;
};

/**
 * Which weights a server has.
 *
 * AS1 the server is told to load before anything is generated, and every load is verified: by the label that only this
 *     engine gives, and by the server's checksum where it has one.
 * AS2 while a load is under way, and after one that failed, nothing is generated (`engine.poisoned`): only a whole load
 *     ends that. The server stays paused, so that it computes for nobody else either.
 * AS3 a completion counts only if the label was this engine's before and after it. A server that was restarted, or that
 *     another client has updated, gets the weights again before it generates for anybody.
 * AS4 prefixes are kept apart by label, and dropped at every load.
 * AS7 the server is told to load only a folder whose files have just been verified, tensor by tensor. One that is cut short or altered
 *     is refused by name, also where it is loaded again, and the server keeps what it has.
 * AS8 an adapter is loaded under a name that it alone has, over the model's own weights, which are loaded first where the server has
 *     others. Requests name it, so none is computed by another. The one before goes when nothing computes with it any more.
 */
export class ServerWeights {
  readonly #protocol: ServerProtocol;
  readonly #settings: Settings;
  readonly #host: WeightsHost;
  #loads = 0;
  /** of the model's own weights, while the server has them (AS8) */
  #ownLabel: string | undefined;
  /** names that the server may have adapters under */
  readonly #adapters = new Set<string>();
  #loaded: Loaded | undefined;
  #poison: TreadleError | undefined;
  /** whether what was loaded last is to be loaded again, since the server has lost it */
  #mustReload = false;
  #isLoading = false;
  #lastCheck: Promise<void> = Promise.resolve();
  #nextCheck: Promise<void> | undefined;

  constructor(protocol: ServerProtocol, settings: Settings, host: WeightsHost) {
    this.#protocol = protocol;
    this.#settings = settings;
    this.#host = host;
  }

  /** The last that got whole into the server. */
  get loaded(): Loaded | undefined {
    return this.#loaded;
  }

  get isLoading(): boolean {
    return this.#isLoading;
  }

  /** Why nothing is generated; undefined while the server has what was loaded. */
  get poison(): TreadleError | undefined {
    return this.#poison;
  }

  /** How many loads there have been, for names that none has had. */
  get numLoads(): number {
    return this.#loads;
  }

  /** AS1, AS2, AS7, AS8. Removes folders that are no longer needed. */
  async load(given: LoadedFolder): Promise<void> {
    const { folder, policyVersion, verify, isAdapter = false } = given;
    const { ownFolder, updateTimeoutMs } = this.#settings;
    const last = this.#loaded;
    try {
      await verify(); // AS7
    } catch (error) {
      if (folder !== ownFolder && folder !== last?.folder) await rm(folder, { recursive: true, force: true });
      if (error instanceof TreadleError) throw error;
      throw new TreadleError(
        "engine.weights-mismatch",
        `weights of version '${policyVersion}' in '${folder}' cannot be read: ${messageOf(error)}; see that nothing else changes that folder`,
        { cause: error, details: { policyVersion } },
      );
    }
    this.#isLoading = true;
    try {
      await this.#host.drain();
      this.#poison = this.#poisonedBy("the load is under way", policyVersion);
      const label = this.#newLabel(policyVersion);
      await this.#protocol.pause();
      const serverLabel = isAdapter ? await this.#ensureOwn() : label;
      if (isAdapter) {
        this.#adapters.add(label);
        await this.#protocol.loadAdapter(folder, label, updateTimeoutMs);
      } else {
        this.#ownLabel = undefined;
        await this.#protocol.load(folder, label, updateTimeoutMs);
        if (folder === ownFolder) this.#ownLabel = label;
      }
      await this.#expectLabel(serverLabel);
      await this.#protocol.resume();
      this.#loaded = { ...given, label, serverLabel, checksum: await this.#changedChecksum(given, last) };
      this.#poison = undefined;
      this.#mustReload = false;
    } catch (error) {
      if (folder !== ownFolder && folder !== last?.folder) await rm(folder, { recursive: true, force: true });
      this.#poison = this.#poisonedBy(error, policyVersion);
      this.#mustReload = folder === last?.folder;
      throw this.#poison;
    } finally {
      this.#isLoading = false;
      this.#host.wake();
    }
    await this.#dropAdapters();
    if (last && last.folder !== folder && last.folder !== ownFolder)
      await rm(last.folder, { recursive: true, force: true });
  }

  /** AS8. Those of loads whose answer was lost, too. A server that has lost one has nothing to drop. */
  async #dropAdapters(): Promise<void> {
    for (const name of this.#adapters) {
      if (this.#loaded?.isAdapter && this.#loaded.label === name) continue;
      this.#adapters.delete(name);
      await this.#protocol.unloadAdapter(name).catch(() => {});
    }
  }

  /** The server has given its memory back: nobody knows what is in it. */
  lostMemory(): void {
    this.#ownLabel = undefined;
  }

  /** vLLM refuses a salt with a slash. */
  #newLabel(policyVersion: number): string {
    return `${this.#settings.name}.${policyVersion}.${++this.#loads}`;
  }

  /** AS8. The label under which the server has the model's own weights. */
  async #ensureOwn(): Promise<string> {
    const { ownFolder, verifyOwn, updateTimeoutMs } = this.#settings;
    if (this.#ownLabel !== undefined && (await this.#protocol.label()) === this.#ownLabel) return this.#ownLabel;
    await verifyOwn(); // AS7
    this.#ownLabel = undefined;
    const label = this.#newLabel(0);
    await this.#protocol.load(ownFolder, label, updateTimeoutMs);
    this.#ownLabel = label;
    return label;
  }

  /** AS1. An adapter changes nothing of what the server computes it of. */
  async #changedChecksum({ digest, isAdapter }: LoadedFolder, last: Loaded | undefined): Promise<string | undefined> {
    if (isAdapter) return undefined;
    const checksum = await this.#protocol.checksum();
    const isOther = digest?.by === last?.digest?.by && digest?.value !== last?.digest?.value;
    if (isOther && checksum !== undefined && checksum === last?.checksum)
      throw new TreadleError("engine.weights-mismatch", "the server's checksum is that of the weights before");
    return checksum;
  }

  /** AS3, before anything is generated. */
  async ensure(): Promise<void> {
    if (!this.#mustReload) {
      try {
        await this.verify();
        return;
      } catch (error) {
        if (!this.#mustReload) throw error;
      }
    }
    await this.#host.inTurn(async () => {
      if (!this.#mustReload || !this.#loaded) return;
      this.#host.warn(`${messageOf(this.#poison)}; version '${this.#loaded.policyVersion}' is loaded again`);
      await this.load(this.#loaded);
    });
  }

  /** AS3. */
  async verify(): Promise<void> {
    const loaded = this.#loaded;
    if (!loaded || this.#isLoading) return;
    if (this.#poison) throw this.#poison;
    try {
      await this.#expectLabel(loaded.serverLabel);
    } catch (error) {
      // What has been loaded meanwhile was verified then.
      if (this.#loaded !== loaded || this.#isLoading) return;
      throw this.#lost(error);
    }
  }

  /** AS3, for answers that do not say whose they are: one check that begins from now on is for all that wait for it. */
  confirm(): Promise<void> {
    this.#nextCheck ??= this.#lastCheck.then(() => {
      const check = this.verify();
      this.#nextCheck = undefined;
      this.#lastCheck = check.catch(() => {}); // whoever waits for it is told
      return check;
    });
    return this.#nextCheck;
  }

  /** AS3, for answers that say whose they are, to a request that was made while `loaded` were the weights. */
  check(labels: readonly string[], loaded: Loaded): void {
    if (this.#loaded !== loaded || this.#isLoading) return; // the answer does not count any more
    const stranger = labels.find((label) => label !== loaded.serverLabel);
    if (stranger !== undefined) throw this.#lost(mismatch(stranger, loaded.serverLabel));
  }

  async #expectLabel(expected: string): Promise<void> {
    const label = await this.#protocol.label();
    if (label !== expected) throw mismatch(label, expected);
  }

  #poisonedBy(error: unknown, policyVersion: number): TreadleError {
    return new TreadleError(
      "engine.poisoned",
      `weights of version '${policyVersion}' did not get whole into ${this.#settings.server}, which generates nothing before others do: ${messageOf(error)}`,
      { cause: error, details: { policyVersion } },
    );
  }

  /** The server has other weights than were loaded into it, unless it only did not answer. */
  #lost(error: unknown): unknown {
    if (!(error instanceof TreadleError) || error.code !== "engine.weights-mismatch") return error;
    if (!this.#poison) {
      this.#poison = new TreadleError("engine.poisoned", error.message, { cause: error });
      this.#mustReload = true;
      this.#host.wake();
    }
    return this.#poison;
  }
}

function mismatch(label: string, expected: string): TreadleError {
  return new TreadleError(
    "engine.weights-mismatch",
    `the server's weights are '${label}' where '${expected}' were loaded: it was restarted, another client updates it, or several servers share its address; give each rank a server of its own`,
  );
}

const messageOf = (error: unknown): string => (error instanceof Error ? error.message : String(error));
