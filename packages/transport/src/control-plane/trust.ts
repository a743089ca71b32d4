/**
 * Whose commands count. Members sign their entries, senders sign their commands, with keys that the other side was given
 * beforehand; commands and their answers are readable to nobody but the two.
 *
 * Owner of: this process's key, a key of encryption that lasts as long as the process, which commands it has heard.
 *
 * TR1 a command acts only when a trusted key of the right role has signed it for this member and this incarnation.
 * TR2 it acts once: who has listened and sends it again is refused.
 * TR3 what a command and its answer say, a run's token among it, only the member and the sender can read.
 * TR4 an answer counts only from the member that was asked; what others answer is passed over.
 * TR5 what is kept of a run counts only as a trusted runner's key has signed it, under the run's id: its configuration, the
 *    entries of its log, each in its place after those before it, its files, each under its name, and the record of how it
 *    goes. An older whole of it, and an older record, count as well, where nobody has a newer one.
 * TR6 that a member is there now is proven only by its signature of words that nobody had heard before.
 * TR7 whatever is signed names the subject prefix under which it was said, and counts under no other: one key may serve several.
 * TR8 a key that is also the login to servers signs for none of them what could be one of these texts: a nonce is letters and digits,
 *    and each of these is JSON.
 */
import type { KeyObject } from "node:crypto";
import { type CommandSender, type NatsConfig, TreadleError } from "@treadle/contracts";
import { z } from "zod";
import { readJson } from "./bounded-json.ts";
import { isSignedBy, publicKeyOf, type SigningKey } from "./nkey-signature.ts";
import { attempt, SealedBox, SealKey, untrusted } from "./sealed-box.ts";
import { SeenCommands } from "./seen-commands.ts";
import { readKey, readTrust, type TrustedKey } from "./trust-file.ts";

/** Of each key: enough for years of runs; the oldest is forgotten then. */
const defaultMaxSenders = 10_000;

const PublicKey = z.string().regex(/^U[A-Z2-7]{55}$/);
const Base64 = z.base64();

/** What a member's entry says of its keys. */
export const EntryProof = z.object({ from: PublicKey, seal: SealKey, signature: Base64 });
type EntryProof = z.infer<typeof EntryProof>;

export const maxPresenceWords = 64;
/** What a member says when it is asked whether it is there. */
export const PresenceProof = z.object({ words: z.array(z.uuid()).min(1).max(maxPresenceWords), signature: Base64 });
export type PresenceProof = z.infer<typeof PresenceProof>;

const Sealed = z.object({
  from: PublicKey,
  seal: SealKey,
  sender: z.uuid(),
  sequence: z.int().nonnegative(),
  box: Base64,
  signature: Base64,
});
const Answered = z.object({ from: PublicKey, sender: z.uuid(), sequence: z.int(), answer: z.string() });

/** Whose word a kept run is. */
export const RunProof = z.object({ from: PublicKey, signature: Base64 });
export type RunProof = z.infer<typeof RunProof>;

/** What a member says of itself. */
export type SignedEntry = { readonly incarnation: number; readonly version: number; readonly body?: unknown };

/** What an answer looks like on its way. */
export type Sealer = (answer: string) => string;

export type Asked = { readonly text: string; readonly open: (answer: string) => string };
export type Received<T> = {
  readonly value: T;
  readonly sender: CommandSender;
  /** by which the sending process is written to, as its entry says if it has one */
  readonly sealKey: string;
  readonly seal: Sealer;
};

export class Trust {
  readonly #keys: ReadonlyMap<string, TrustedKey>;
  readonly #own: SigningKey;
  readonly #box = new SealedBox();
  readonly #sender = crypto.randomUUID();
  /** by key, so that nobody has another's forgotten */
  readonly #seen = new Map<string, SeenCommands>();
  readonly #file: string;
  readonly #prefix: string;
  readonly #maxSenders: number;
  #sequence = 0;

  constructor(
    keys: readonly TrustedKey[],
    own: SigningKey,
    { file, prefix, maxSenders = defaultMaxSenders }: TrustOptions,
  ) {
    this.#maxSenders = maxSenders;
    this.#keys = new Map(keys.map((each) => [each.key, each]));
    this.#own = own;
    this.#file = file;
    this.#prefix = prefix;
  }

  /** Undefined where none is configured. Throws `config.invalid`. */
  static of({ trustFile, keyFile, credentialsFile, subjectPrefix }: TrustConfig): Trust | undefined {
    if (trustFile === undefined) return undefined;
    const path = keyFile ?? credentialsFile;
    if (path === undefined) {
      throw new TreadleError(
        "config.invalid",
        `trust in the keys of '${trustFile}' needs a key of one's own; give cluster.nats.credentialsFile (--credentials), or cluster.nats.keyFile (--key)`,
      );
    }
    return new Trust(readTrust(trustFile), readKey(path), { file: trustFile, prefix: subjectPrefix });
  }

  /** By which this process, and no other, is written to. */
  get sealKey(): string {
    return this.#box.publicKey;
  }

  get publicKey(): string {
    return this.#own.publicKey;
  }

  /** For an entry of this process. */
  prove(key: string, { incarnation, version, body }: SignedEntry): EntryProof {
    const seal = this.#box.publicKey;
    const signature = base64(this.#own.sign(entryText(this.#prefix, key, incarnation, version, seal, body)));
    return { from: this.publicKey, seal, signature };
  }

  /** TR6, of this process. `words`: of whoever asks. */
  provePresence(key: string, incarnation: number, words: readonly string[]): PresenceProof {
    return {
      words: [...words],
      signature: base64(this.#own.sign(presenceText(this.#prefix, key, incarnation, words))),
    };
  }

  /** TR6. `from`: the key with which the member has signed its entry. */
  isPresent(key: string, incarnation: number, from: string, { words, signature }: PresenceProof): boolean {
    return verifies(from, presenceText(this.#prefix, key, incarnation, words), signature);
  }

  /** The key by which that member is written to. Throws `control-plane.untrusted`. */
  sealKeyOf(
    key: string,
    { incarnation, version, body, proof }: SignedEntry & { proof?: EntryProof | undefined },
  ): string {
    const { kind, name } = partsOf(key);
    if (proof === undefined) throw untrusted(`${kind} '${name}' has announced itself without a key; give it --trust`);
    const { from, seal, signature } = proof;
    const known = this.#keys.get(from);
    const role: CommandSender["role"] = kind === "node" ? "node" : "runner";
    if (known?.role !== role || (known.name !== undefined && known.name !== name)) {
      throw untrusted(
        `${kind} '${name}' has announced itself with key '${from}', which is not that of a ${role} there; add '${role} ${from}' to '${this.#file}'`,
      );
    }
    if (!verifies(from, entryText(this.#prefix, key, incarnation, version, seal, body), signature)) {
      throw untrusted(`what ${kind} '${name}' says of itself is not signed by its key '${from}'`);
    }
    return seal;
  }

  /** A command on its way to a member with this key, and how its answer is read (TR3, TR4). */
  ask(subject: string, text: string, memberKey: string): Asked {
    const [from, seal, sender, sequence] = [
      this.publicKey,
      this.#box.publicKey,
      this.#sender,
      this.#sequence++,
    ] as const;
    const box = this.#box.seal(text, memberKey);
    const signature = base64(this.#own.sign(commandText(subject, { from, seal, sender, sequence, box })));
    return {
      text: JSON.stringify({ from, seal, sender, sequence, box, signature }),
      open: (answer) => {
        const opened = readJson(Answered, this.#box.openAnswer(answer, memberKey));
        if (opened?.from !== from || opened.sender !== sender || opened.sequence !== sequence)
          throw untrusted("an answer is that to another command");
        return opened.answer;
      },
    };
  }

  /**
   * TR1, TR2. `read` throws where this sender may not ask for that. Throws `control-plane.untrusted`. `onRefused`: before it
   * throws, how the sender is told. Of what the sender has not signed, or has asked before, it is told nothing: who sends a
   * question changed or again would have it answered (TR4).
   */
  receive<T>(
    subject: string,
    data: string,
    read: (text: string, sender: CommandSender) => T,
    onRefused: (seal: Sealer) => void = () => {},
  ): Received<T> {
    const command = readJson(Sealed, data);
    if (command === undefined) throw untrusted("a command is not signed; give whoever sends it --trust and its key");
    const { from, seal, sender, sequence, box, signature } = command;
    const known = this.#keys.get(from);
    const answer = this.#sealer(command);
    if (known === undefined) {
      if (attempt(() => isSignedBy(publicKeyOf(from), commandText(subject, command), signature))) onRefused(answer);
      throw untrusted(`a command is signed with key '${from}', which '${this.#file}' does not name`);
    }
    if (!verifies(from, commandText(subject, command), signature)) {
      throw untrusted(`a command is not signed by the key that it names, '${from}'`);
    }
    const text = this.#box.open(box, seal);
    const commander = { role: known.role, ...(known.name === undefined ? {} : { name: known.name }) };
    let value: T;
    try {
      value = read(text, commander);
    } catch (error) {
      onRefused(answer);
      throw error;
    }
    const seen = this.#seen.get(from) ?? new SeenCommands(this.#maxSenders);
    this.#seen.set(from, seen);
    if (!seen.isNew(sender, sequence)) throw untrusted("a command arrived again; each acts once");
    return { value, sender: commander, sealKey: seal, seal: answer };
  }

  /** Readable to the sender of the command alone (TR3), and an answer to nobody else (TR4). */
  #sealer({ from, seal, sender, sequence }: z.infer<typeof Sealed>): Sealer {
    return (answer) => {
      const answered = JSON.stringify({ from, sender, sequence, answer } satisfies z.infer<typeof Answered>);
      return attempt(() => this.#box.sealAnswer(answered, seal)) ?? answer;
    };
  }

  /** For what is kept of a run where others may write. */
  proveRun(runId: string, body: unknown): RunProof {
    return { from: this.publicKey, signature: base64(this.#own.sign(runText(this.#prefix, runId, body))) };
  }

  /** TR5. `part`: which of the run, in words. Throws `control-plane.untrusted`. */
  checkRun(runId: string, body: unknown, proof: RunProof | undefined, part?: string): void {
    const kept = `${part === undefined ? "" : `${part} of `}run '${runId}', as the NATS servers have it,`;
    const remedy = `resume it with --trust where its folder still is, which signs it, if need be after 'treadle runs --forget ${runId}'`;
    if (proof === undefined) throw untrusted(`${kept} is not signed; ${remedy}`);
    const { from, signature } = proof;
    if (this.#keys.get(from)?.role !== "runner") {
      throw untrusted(
        `${kept} is signed with key '${from}', which '${this.#file}' does not name as that of a runner; if that is your runner, add 'runner ${from}' there, or forget the run with 'treadle runs --forget ${runId}'`,
      );
    }
    if (!verifies(from, runText(this.#prefix, runId, body), signature)) {
      throw untrusted(`${kept} is not what key '${from}' has signed; ${remedy}`);
    }
  }
}

type TrustConfig = Pick<NatsConfig, "trustFile" | "keyFile" | "credentialsFile" | "subjectPrefix">;
export type TrustOptions = {
  /** that names the keys, for whoever mends it */
  readonly file: string;
  /** of all subjects (TR7) */
  readonly prefix: string;
  /** whose commands are remembered, of each key */
  readonly maxSenders?: number;
};

const bytes = (text: string): Uint8Array => new TextEncoder().encode(text);
const base64 = (data: Buffer): string => data.toString("base64");

function partsOf(key: string): { kind: string; name: string } {
  const at = key.indexOf(".");
  return { kind: key.slice(0, at), name: key.slice(at + 1) };
}

const entryText = (prefix: string, key: string, incarnation: number, version: number, seal: string, body: unknown) =>
  bytes(JSON.stringify(["treadle entry 4", prefix, key, incarnation, version, seal, body ?? null]));

const presenceText = (prefix: string, key: string, incarnation: number, words: readonly string[]): Uint8Array =>
  bytes(JSON.stringify(["treadle presence 2", prefix, key, incarnation, words]));

type CommandHead = { from: string; seal: string; sender: string; sequence: number; box: string };
/** The subject begins with the prefix (TR7). */
const commandText = (subject: string, { from, seal, sender, sequence, box }: CommandHead): Uint8Array =>
  bytes(JSON.stringify(["treadle command 2", subject, from, seal, sender, sequence, box]));

const runText = (prefix: string, runId: string, body: unknown): Uint8Array =>
  bytes(JSON.stringify(["treadle kept run 2", prefix, runId, body]));

/** Of trusted keys only, which are few. */
const publicKeys = new Map<string, KeyObject>();

function verifies(nkey: string, text: Uint8Array, signature: string): boolean {
  const key = publicKeys.get(nkey) ?? publicKeyOf(nkey);
  publicKeys.set(nkey, key);
  return isSignedBy(key, text, signature);
}
