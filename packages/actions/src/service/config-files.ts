/** The files that a configuration names, relative to its folder. */
import { readFile } from "node:fs/promises";
import { resolve } from "node:path";
import { TreadleError } from "@treadle/contracts";
import type { ActionServiceConfig } from "./service-config.ts";

export type ConfigFiles = ReturnType<typeof filesIn>;

/** What it returns throws `config.invalid`, with the key that names the file. */
export function filesIn(folder: string) {
  const read = (path: string, key: string): Promise<Buffer> =>
    readFile(resolve(folder, path)).catch((cause: Error) => {
      throw new TreadleError("config.invalid", `${key}: '${path}' cannot be read: ${cause.message}`, { cause });
    });
  const certificates = async (tls: ActionServiceConfig["tls"]) =>
    tls && {
      key: await read(tls.key, "tls.key"),
      certificate: await read(tls.certificate, "tls.certificate"),
      clientAuthority:
        tls.clientAuthority === undefined ? undefined : await read(tls.clientAuthority, "tls.clientAuthority"),
    };
  return { read, certificates };
}

/** Throws `config.invalid` for one that is empty. */
export async function tokenIn(files: ConfigFiles, path: string, key: string): Promise<string> {
  const token = (await files.read(path, key)).toString().trim();
  if (/^[\x20-\x7e]+$/.test(token)) return token;
  if (token !== "")
    throw new TreadleError(
      "config.invalid",
      `${key}: '${path}' has other than printable ASCII in one line; write such a secret to it`,
    );
  throw new TreadleError("config.invalid", `${key}: '${path}' is empty; write a secret of its own to it`);
}
