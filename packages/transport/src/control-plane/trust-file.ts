/** Keys on disk: whose commands count (the trust file), and this process's own. Both are NATS's own form of ed25519 keys. */
import { closeSync, constants, fstatSync, openSync, readFileSync, type Stats } from "node:fs";
import { createUser, fromPublic } from "@nats-io/nkeys";
import { type CommandSender, TreadleError } from "@treadle/contracts";
import { seedIn } from "./nkey-seed.ts";
import { SigningKey } from "./nkey-signature.ts";

const writableByOthers = 0o022;
const openToOthers = 0o077;

/** With a name it speaks for that node alone. */
export type TrustedKey = CommandSender & { readonly key: string };

const line = /^(runner|node)\s+(U[A-Z2-7]{55})(?:\s+([A-Za-z0-9_-]{1,60}))?$/;

/** Lines as `runner UA…` and `node UB… [name]`; `#` begins a comment. Throws `config.invalid`. */
export function parseTrust(text: string, path: string): TrustedKey[] {
  return text.split("\n").flatMap((raw, index): TrustedKey[] => {
    const found = line.exec(raw.replace(/#.*/, "").trim());
    if (raw.replace(/#.*/, "").trim() === "") return [];
    const [, role, key, name] = found ?? [];
    if (role === undefined || key === undefined || !isPublicKey(key)) {
      throw new TreadleError(
        "config.invalid",
        `line ${index + 1} of the trust file '${path}' is no key: '${raw.slice(0, 80)}'; write 'runner U…' or 'node U… [name]', as 'treadle cluster init' does`,
      );
    }
    return [{ role: role as CommandSender["role"], key, ...(name === undefined ? {} : { name }) }];
  });
}

/** Throws `config.invalid`, also for a file that others than this user and root can change: it says nothing of whom to trust. */
export function readTrust(path: string): TrustedKey[] {
  const { text, stats } = read(path, "the trust file");
  const self = process.getuid?.();
  if (self !== undefined && stats.uid !== self && stats.uid !== 0) {
    throw new TreadleError(
      "config.invalid",
      `the trust file '${path}' is user '${stats.uid}'s, who can change it; it must be user '${self}'s or root's: 'chown ${self} ${path}', and look at what stands there`,
    );
  }
  if ((stats.mode & writableByOthers) !== 0) {
    throw new TreadleError(
      "config.invalid",
      `the trust file '${path}' can be written by others than its owner (mode '${(stats.mode & 0o777).toString(8)}'); 'chmod go-w ${path}', and look at what stands there`,
    );
  }
  return parseTrust(text, path);
}

/** Throws `config.invalid`, as ssh does also for a key of this user's that others can read: it is theirs as well. */
export function readKey(path: string): SigningKey {
  const { text, stats } = read(path, "the key");
  // One that is another user's is given to this one by its mode, as those of Kubernetes' secrets.
  if (stats.uid === process.getuid?.() && (stats.mode & openToOthers) !== 0) {
    throw new TreadleError(
      "config.invalid",
      `the key '${path}' is open to other users of this machine (mode '${(stats.mode & 0o777).toString(8)}'); 'chmod 600 ${path}', and make new keys where others may have read it`,
    );
  }
  const seed = seedIn(text);
  try {
    if (seed !== undefined) return new SigningKey(seed);
  } catch {
    // its checksum is wrong
  }
  throw new TreadleError(
    "config.invalid",
    `'${path}' holds no key of a user of NATS (a line that begins with 'SU'); give the file that 'treadle cluster init' wrote`,
  );
}

/** The very file that is looked at is read, whatever takes its name meanwhile; a pipe, which may wait for its writer, is none. */
function read(path: string, what: string): { readonly text: string; readonly stats: Stats } {
  try {
    const file = openSync(path, constants.O_RDONLY | constants.O_NONBLOCK);
    try {
      const stats = fstatSync(file);
      if (!stats.isFile()) throw new Error("it is no file");
      return { text: readFileSync(file, "utf8"), stats };
    } finally {
      closeSync(file);
    }
  } catch (cause) {
    throw new TreadleError("config.invalid", `${what} '${path}' cannot be read: ${(cause as Error).message}`, {
      cause,
    });
  }
}

function isPublicKey(key: string): boolean {
  try {
    fromPublic(key);
    return true;
  } catch {
    return false;
  }
}

/** A new key of a user of NATS. */
export function makeKey(): { readonly seed: string; readonly publicKey: string } {
  const pair = createUser();
  return { seed: new TextDecoder().decode(pair.getSeed()), publicKey: pair.getPublicKey() };
}
