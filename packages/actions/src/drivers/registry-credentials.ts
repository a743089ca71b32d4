/**
 * Credentials of registries, in a file as `docker login` writes it. It is read for each pull, since tokens are renewed there, and
 * nothing of what it says but the names of registries is in any message: Node quotes what it cannot parse.
 */
import { readFile } from "node:fs/promises";
import { TreadleError } from "@treadle/contracts";
import { z } from "zod";

/** As the engine takes them (`X-Registry-Auth`). */
export type RegistryCredentials = { readonly serveraddress: string } & (
  | { readonly username: string; readonly password: string }
  | { readonly identitytoken: string }
);

const Entry = z.looseObject({
  /** base64 of `user:password` */
  auth: z.string().optional(),
  username: z.string().optional(),
  password: z.string().optional(),
  identitytoken: z.string().optional(),
});
const AuthFile = z.looseObject({
  auths: z.record(z.string(), Entry).default({}),
  credsStore: z.string().optional(),
  credHelpers: z.record(z.string(), z.string()).default({}),
});

const ofHub = "docker.io";
const namesOfHub: ReadonlySet<string> = new Set(["index.docker.io", "registry-1.docker.io", "registry.hub.docker.com"]);

/** The registry that an image is pulled from. */
export function registryOf(image: string): string {
  const [first = "", ...rest] = image.split("/");
  return rest.length > 0 && (/[.:]/.test(first) || first === "localhost") ? hostOf(first) : ofHub;
}

/** Of a key of the file, which may be a URL. */
function hostOf(key: string): string {
  const host = key
    .replace(/^https?:\/\//, "")
    .replace(/\/.*$/s, "")
    .toLowerCase();
  return namesOfHub.has(host) ? ofHub : host;
}

/** By registry; none without a file. Throws `config.invalid` where the file cannot be read, or has credentials that cannot be sent. */
export async function credentialsIn(path: string | undefined): Promise<ReadonlyMap<string, RegistryCredentials>> {
  if (path === undefined) return new Map();
  const refuse = (why: string): never => {
    throw new TreadleError("config.invalid", `docker.authFile: '${path}' ${why}`);
  };
  const remedy = "write it with 'docker login', without a credential helper";
  const text = await readFile(path, "utf8").catch((cause: NodeJS.ErrnoException) =>
    refuse(`cannot be read (${cause.code ?? "no reason given"}); name a file as 'docker login' writes it`),
  );
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    refuse(`is no JSON; ${remedy}`);
  }
  const parsed = AuthFile.safeParse(value);
  if (!parsed.success) {
    const problems = parsed.error.issues.map(({ path: key, message }) => `${key.join(".") || "all of it"}: ${message}`);
    return refuse(`has no credentials as they should be: ${problems.join(", ")}; ${remedy}`);
  }
  const { auths, credsStore, credHelpers } = parsed.data;
  const found = new Map<string, RegistryCredentials>();
  for (const [key, entry] of Object.entries(auths)) {
    const credentials = credentialsOf(key, entry);
    if (credentials !== undefined) found.set(hostOf(key), credentials);
    else if (entry.auth !== undefined && entry.auth !== "")
      refuse(`has an 'auth' for '${key}' that is no base64 of 'user:password'; ${remedy}`);
    else refuse(`has none for '${key}'${inHelper(credHelpers[key] ?? credsStore)}; ${remedy}`);
  }
  for (const [key, helper] of Object.entries(credHelpers))
    if (!found.has(hostOf(key))) refuse(`has none for '${key}'${inHelper(helper)}; ${remedy}`);
  return found;
}

const inHelper = (helper: string | undefined): string =>
  helper === undefined ? "" : `: the program 'docker-credential-${helper}' keeps them, and none is run here`;

function credentialsOf(serveraddress: string, entry: z.infer<typeof Entry>): RegistryCredentials | undefined {
  const { auth, username, password, identitytoken } = entry;
  if (identitytoken) return { identitytoken, serveraddress };
  if (username && password !== undefined) return { username, password, serveraddress };
  const [, user, secret] =
    /^([^:]+):(.*)$/s.exec(
      Buffer.from(auth ?? "", "base64")
        .toString()
        .replace(/\0+$/, ""),
    ) ?? [];
  return user === undefined ? undefined : { username: user, password: secret!, serveraddress };
}
