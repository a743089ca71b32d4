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

type Place = { readonly registry: string; readonly path: string };

/** The registry that an image is pulled from. */
export const registryOf = (image: string): string => placeOfImage(image).registry;

function placeOfImage(image: string): Place {
  const [first = "", ...rest] = image.replace(/@.*$/s, "").split("/");
  const isNamed = rest.length > 0 && (/[.:]/.test(first) || first === "localhost");
  const registry = isNamed ? hostOf(first) : ofHub;
  const path = (isNamed ? rest : [first, ...rest]).join("/").replace(/:[^/]*$/s, "");
  return { registry, path: registry === ofHub && !path.includes("/") ? `library/${path}` : path };
}

/** Of a key of the file: a registry, perhaps a path there, or a URL, where `/v1/` and `/v2/` are the API and no path. */
function placeOfKey(key: string): Place {
  const [host = "", ...rest] = key.replace(/^https?:\/\//, "").split("/");
  const path = rest.join("/").replace(/\/+$/, "");
  return { registry: hostOf(host), path: /^v[12]$/.test(path) ? "" : path };
}

function hostOf(name: string): string {
  const host = name.toLowerCase();
  return namesOfHub.has(host) ? ofHub : host;
}

/** The key that says most of where an image is: its registry, and the longest path there. */
function keyFor(image: string, keys: readonly string[]): string | undefined {
  const asked = placeOfImage(image);
  let [found, longest]: [string | undefined, number] = [undefined, -1];
  for (const key of keys) {
    const { registry, path } = placeOfKey(key);
    const isOfImage = registry === asked.registry && (path === "" || `${asked.path}/`.startsWith(`${path}/`));
    if (isOfImage && path.length > longest) [found, longest] = [key, path.length];
  }
  return found;
}

const remedy = "write it with 'docker login', without a credential helper";

function refuse(path: string, why: string): never {
  throw new TreadleError("config.invalid", `docker.authFile: '${path}' ${why}`);
}

async function read(path: string): Promise<z.infer<typeof AuthFile>> {
  const text = await readFile(path, "utf8").catch((cause: NodeJS.ErrnoException) =>
    refuse(path, `cannot be read (${cause.code ?? "no reason given"}); name a file as 'docker login' writes it`),
  );
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    refuse(path, `is no JSON; ${remedy}`);
  }
  const parsed = AuthFile.safeParse(value);
  if (parsed.success) return parsed.data;
  const problems = parsed.error.issues.map(({ path: key, message }) => `${key.join(".") || "all of it"}: ${message}`);
  return refuse(path, `has no credentials as they should be: ${problems.join(", ")}; ${remedy}`);
}

/** Throws `config.invalid` where the file cannot be read; what it has for a registry is looked at when an image of it is pulled. */
export async function checkAuthFile(path: string | undefined): Promise<void> {
  if (path !== undefined) await read(path);
}

/**
 * What is sent for the image; undefined where the file has nothing of its registry, or there is none. Throws `config.invalid` where
 * the file cannot be read, or has for the image what cannot be sent.
 */
export async function credentialsFor(
  path: string | undefined,
  image: string,
): Promise<RegistryCredentials | undefined> {
  if (path === undefined) return undefined;
  const { auths, credsStore, credHelpers } = await read(path);
  const key = keyFor(image, Object.keys(auths));
  const helped = keyFor(image, Object.keys(credHelpers));
  const helper = helped === undefined ? undefined : credHelpers[helped];
  if (key === undefined)
    return helped === undefined ? undefined : refuse(path, `has none for '${helped}'${inHelper(helper)}; ${remedy}`);
  const entry = auths[key]!;
  const credentials = credentialsOf(key, entry);
  if (credentials !== undefined) return credentials;
  return entry.auth !== undefined && entry.auth !== ""
    ? refuse(path, `has an 'auth' for '${key}' that is no base64 of 'user:password'; ${remedy}`)
    : refuse(path, `has none for '${key}'${inHelper(helper ?? credsStore)}; ${remedy}`);
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
