/** Images of registries that ask who pulls: real ones, over HTTP on loopback, and a real engine where one can be started. */
import { createHash } from "node:crypto";
import { once } from "node:events";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join, relative } from "node:path";
import { inspect } from "node:util";
import { gzipSync } from "node:zlib";
import { afterAll, afterEach, describe, expect, test } from "vitest";
import { DockerDriver } from "../src/docker.ts";
import { credentialsFor, registryOf } from "../src/drivers/registry-credentials.ts";
import { openDriver } from "../src/index.ts";
import { ActionServiceConfig, openActionService } from "../src/serve.ts";
import { connectActions, outputOf } from "./support/client.ts";
import { prepareDocker, startDockerEngine, type TestEngine } from "./support/docker-engine.ts";
import { rawArchive } from "./support/tar.ts";

const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup();
});

function folderWith(content: unknown): string {
  const folder = mkdtempSync(join(tmpdir(), "treadle-auth-"));
  cleanups.push(() => rmSync(folder, { recursive: true }));
  writeFileSync(join(folder, "auth.json"), typeof content === "string" ? content : JSON.stringify(content));
  return folder;
}
const fileWith = (content: unknown): string => join(folderWith(content), "auth.json");
const encoded = (user: string, password: string): string => Buffer.from(`${user}:${password}`).toString("base64");

describe("a file of credentials", () => {
  test.each([
    ["python:3.12-slim", "docker.io"],
    ["team/task", "docker.io"],
    ["docker.io/team/task:1", "docker.io"],
    ["index.docker.io/team/task", "docker.io"],
    ["registry.example.com/team/task:1", "registry.example.com"],
    ["Registry.Example.com/task", "registry.example.com"],
    ["localhost/task", "localhost"],
    ["127.0.0.1:5000/task@sha256:aa", "127.0.0.1:5000"],
    ["registry.example.com", "docker.io"],
  ])("is asked for image '%s' about registry '%s'", (image, registry) => {
    expect(registryOf(image)).toBe(registry);
  });

  test("has them as 'docker login', or whoever writes them by hand, has written them", async () => {
    const auths = {
      "https://index.docker.io/v1/": { auth: encoded("me", "a:b") },
      "registry.example.com": { username: "you", password: "" },
      "https://Other.example.com/v2/": { auth: encoded("<token>", "x"), identitytoken: "t" },
    };
    const file = fileWith({ auths, HttpHeaders: { "User-Agent": "x" } });
    const here = relative(process.cwd(), file);
    const ofHub = { username: "me", password: "a:b", serveraddress: "https://index.docker.io/v1/" };
    expect(await credentialsFor(file, "python:3.12")).toEqual(ofHub);
    expect(await credentialsFor(here, "docker.io/team/task@sha256:aa")).toEqual(ofHub);
    expect(await credentialsFor(file, "registry.example.com/task")).toEqual({
      ...{ username: "you", password: "", serveraddress: "registry.example.com" },
    });
    expect(await credentialsFor(file, "other.example.com/a/b:1")).toEqual({
      ...{ identitytoken: "t", serveraddress: "https://Other.example.com/v2/" },
    });
    expect(await credentialsFor(file, "else.example.com/task")).toBeUndefined();
    expect(await credentialsFor(fileWith("{}"), "task")).toBeUndefined();
    expect(await credentialsFor(undefined, "task")).toBeUndefined();
  });

  test("has those of the longest path that the image is under, in whatever order", async () => {
    const keys = ["ghcr.io/org1", "ghcr.io", "ghcr.io/org1/team/task", "https://ghcr.io/org2/", "docker.io/library"];
    for (const order of [keys, keys.toReversed()]) {
      const auths = Object.fromEntries(order.map((key) => [key, { auth: encoded(key.replace(/\W/g, "-"), "x") }]));
      const file = fileWith({ auths });
      const keyOf = async (image: string) => (await credentialsFor(file, image))?.serveraddress;
      expect(await keyOf("ghcr.io/org1/task:1")).toBe("ghcr.io/org1");
      expect(await keyOf("ghcr.io/org1/team/task:1@sha256:aa")).toBe("ghcr.io/org1/team/task");
      expect(await keyOf("ghcr.io/org1/team/task2")).toBe("ghcr.io/org1");
      expect(await keyOf("ghcr.io/org2/task")).toBe("https://ghcr.io/org2/");
      expect(await keyOf("ghcr.io/org11/task")).toBe("ghcr.io");
      expect(await keyOf("python:3.12")).toBe("docker.io/library");
      expect(await keyOf("team/task")).toBeUndefined();
    }
  });

  test("that cannot be sent for one registry is no matter for others", async () => {
    const auths = { r: {}, "bad.example.com": { auth: "s3cret" }, "good.example.com": { auth: encoded("me", "x") } };
    const file = fileWith({ auths, credHelpers: { "helped.example.com": "h" }, credsStore: "s" });
    expect(await credentialsFor(file, "good.example.com/task")).toMatchObject({ username: "me" });
    expect(await credentialsFor(file, "python")).toBeUndefined();
    await expect(credentialsFor(file, "helped.example.com/task")).rejects.toThrow(/docker-credential-h/);
    await expect(credentialsFor(file, "bad.example.com/task")).rejects.toThrow(/no base64/);
  });

  test.each([
    ["is no JSON", '{"auths":{"r":{"auth":"s3cret', /is no JSON; write it with 'docker login'/],
    ["has text for a table", { auths: { "r.io": "s3cret" } }, /: auths\.r\.io: .*; write it with/],
    [
      "has no base64",
      { auths: { "r.io": { auth: "s3cret" } } },
      /an 'auth' for 'r.io' that is no base64 of 'user:password'/,
    ],
    ["has nothing for one", { auths: { "r.io": {} } }, /has none for 'r.io'; write/],
    [
      "names a store",
      { auths: { "r.io": {} }, credsStore: "s" },
      /for 'r.io': the program 'docker-credential-s' keeps them/,
    ],
    [
      "names a helper",
      { credHelpers: { "r.io": "h" } },
      /for 'r.io': the program 'docker-credential-h' keeps them, and none/,
    ],
  ])("that %s is refused, without a word of its secrets", async (_, content, message) => {
    const error = await credentialsFor(fileWith(content), "r.io/task").catch((error: Error) => error);
    expect(error).toMatchObject({ code: "config.invalid", message: expect.stringMatching(message) });
    expect(inspect(error, { depth: null })).not.toMatch(/s3cret/);
  });
});

const started = await startDockerEngine();
const missing = typeof started === "string" ? started : undefined;
const engine = started as TestEngine;
afterAll(async () => {
  if (missing === undefined) await engine.close();
});

const sha256 = (data: string | Buffer): string => `sha256:${createHash("sha256").update(data).digest("hex")}`;

/** A registry that has one small image, `team/task:1`, for whoever says this name and password. */
async function serveRegistry(user: string, password: string) {
  const { programs } = await prepareDocker();
  const busybox = readFileSync(join(programs, "bin/busybox"), "latin1");
  const links = ["sh", "env", "cat", "mkdir", "chmod", "echo", "ls"];
  const layer = rawArchive(
    { name: "bin/", flag: "5", mode: 0o755 },
    { name: "bin/busybox", content: busybox, mode: 0o755 },
    ...links.map((name) => ({ name: `bin/${name}`, flag: "2", target: "busybox", mode: 0o777 })),
    { name: "secret", content: "of the image" },
  );
  const config = JSON.stringify({
    ...{ architecture: process.arch === "arm64" ? "arm64" : "amd64", os: "linux", config: {} },
    rootfs: { type: "layers", diff_ids: [sha256(layer)] },
    history: [{ created_by: "a test" }],
  });
  const packed = gzipSync(layer);
  const ofDocker = "application/vnd.docker";
  const manifest = JSON.stringify({
    schemaVersion: 2,
    mediaType: `${ofDocker}.distribution.manifest.v2+json`,
    config: { mediaType: `${ofDocker}.container.image.v1+json`, size: config.length, digest: sha256(config) },
    layers: [{ mediaType: `${ofDocker}.image.rootfs.diff.tar.gzip`, size: packed.length, digest: sha256(packed) }],
  });
  const blobs = new Map<string, string | Buffer>([config, packed, manifest].map((data) => [sha256(data), data]));
  const wanted = `Basic ${encoded(user, password)}`;
  const heard: (string | undefined)[] = [];
  const server = createServer((request, response) => {
    const { authorization } = request.headers;
    heard.push(authorization);
    if (authorization !== wanted) {
      const headers = { "WWW-Authenticate": 'Basic realm="test"', "content-type": "application/json" };
      const errors = [{ code: "UNAUTHORIZED", message: "authentication required" }];
      return void response.writeHead(401, headers).end(JSON.stringify({ errors }));
    }
    const [, name] = /^\/v2\/team\/task\/(?:manifests|blobs)\/(.*)$/.exec(request.url ?? "") ?? [];
    const data = name === "1" ? manifest : blobs.get(name ?? "");
    if (data === undefined) return void response.writeHead(request.url === "/v2/" ? 200 : 404).end("{}");
    const type = data === manifest ? `${ofDocker}.distribution.manifest.v2+json` : "application/octet-stream";
    const headers = { "content-type": type, "content-length": data.length, "docker-content-digest": sha256(data) };
    response.writeHead(200, headers).end(request.method === "HEAD" ? undefined : data);
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  cleanups.push(() => {
    server.closeAllConnections();
    server.close();
  });
  const registry = `127.0.0.1:${(server.address() as AddressInfo).port}`;
  return { registry, image: `${registry}/team/task:1`, heard };
}

const password = "s3cret-of-the-registry";

describe.skipIf(missing !== undefined)(`an image${missing === undefined ? "" : ` (skipped: ${missing})`}`, () => {
  const driverWith = (authFile: string | undefined, image: string) => {
    const { socket } = engine;
    const driver = new DockerDriver({ image: engine.image, images: [image], pull: "missing", socket, authFile });
    cleanups.push(() => driver.close());
    return driver;
  };
  const failureOf = async (authFile: string | undefined, image: string) => {
    const opening = driverWith(authFile, image).open({ container: { image } });
    const error = await opening.then(
      () => undefined,
      (error: Error) => error,
    );
    expect(error).toMatchObject({ code: "sandbox.unavailable" });
    expect(inspect(error, { depth: null })).not.toMatch(/s3cret|czNjcmV0/);
    return error!.message;
  };

  test("is pulled with the credentials of its registry, which no other registry is told", async () => {
    const [own, other] = [await serveRegistry("me", password), await serveRegistry("me", password)];
    const auths = { [own.registry]: { auth: encoded("me", password) } };
    const folder = folderWith({ auths });
    const config = ActionServiceConfig.parse({
      ...{ listen: "127.0.0.1:0", drivers: ["docker"] },
      docker: {
        ...{ image: engine.image, images: ["127.0.0.1:*"], socket: engine.socket },
        ...{ pull: "missing", authFile: "auth.json" },
      },
    });
    const service = await openActionService(config, folder);
    const { call, submit, close } = connectActions(service.address);
    cleanups.push(async () => {
      close();
      await service.close();
    });
    await call("OpenTrajectory", { trajectory: "own", image: own.image });
    const run = submit({ trajectory: "own", command: ["cat", "/secret"] });
    expect(await run.ended).toBeUndefined();
    expect(outputOf(run)).toBe("of the image");
    await call("OpenTrajectory", { trajectory: "other", image: other.image });
    const refused = await submit({ trajectory: "other", command: ["true"] }).ended;
    expect(refused).toMatchObject({
      details: expect.stringMatching(
        new RegExp(
          `image '${other.image}' could not be pulled: .*; docker.authFile has no credentials for registry '${other.registry}'`,
        ),
      ),
    });
    expect(inspect(refused, { depth: null })).not.toMatch(/s3cret|czNjcmV0/);
    expect(own.heard).toContain(`Basic ${encoded("me", password)}`);
    expect(other.heard.length).toBeGreaterThan(0);
    expect(other.heard.filter((one) => one !== undefined)).toEqual([]);
    await engine.docker.getImage(own.image).remove({ force: true });
  });

  test("that its registry refuses says whose credentials to mend, and none of them", async () => {
    const { registry, image } = await serveRegistry("me", password);
    const wrong = fileWith({ auths: { [registry]: { auth: encoded("me", `${password}!`) } } });
    expect(await failureOf(wrong, image)).toMatch(
      new RegExp(`; registry '${registry}' refuses the credentials that docker.authFile has for it: renew them `),
    );
    expect(await failureOf(undefined, image)).toMatch(
      new RegExp(`; give credentials for registry '${registry}' in docker.authFile$`),
    );
    expect(await failureOf(wrong, "127.0.0.1:1/team/task:1")).toMatch(
      /could not be pulled: .*connection refused[^;]*$/,
    );
  });

  test("is pulled with credentials that were renewed after the start", async () => {
    const { registry, image } = await serveRegistry("me", password);
    const file = fileWith({ auths: { [registry]: { auth: encoded("me", "old") } } });
    const driver = driverWith(file, image);
    await expect(driver.open({ container: { image } })).rejects.toThrow(/renew them/);
    writeFileSync(file, JSON.stringify({ auths: { [registry]: { username: "me", password } } }));
    const sandbox = await driver.open({ container: { image } });
    expect((await sandbox.exec({ command: ["cat", "/secret"] })).stdout.toString()).toBe("of the image");
    rmSync(file);
    await sandbox.close();
    await engine.docker.getImage(image).remove({ force: true });
    await expect(driver.open({ container: { image } })).rejects.toThrow(
      /docker\.authFile: '.*' cannot be read \(ENOENT\)/,
    );
  });

  test("needs a file that is there when a service starts, whatever other drivers it may take", async () => {
    const { image, socket } = engine;
    const docker = { image, socket, authFile: "/nowhere/auth.json" };
    await expect(openDriver({ drivers: ["docker", "process"], docker })).rejects.toMatchObject({
      code: "config.invalid",
      message: expect.stringMatching(
        /^docker\.authFile: '\/nowhere\/auth\.json' cannot be read \(ENOENT\); name a file/,
      ),
    });
  });
});
