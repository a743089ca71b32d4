import { execFileSync, spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import http, { createServer } from "node:http";
import https from "node:https";
import { type AddressInfo, connect, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterEach, expect, test } from "vitest";
import { z } from "zod";
import { ActionPool, QuotaManager } from "../src/index.ts";
import { serveOpenAi } from "../src/openai/openai-endpoint.ts";
import { ActionServiceConfig, openActionService, StatisticsClient } from "../src/serve.ts";
import { collectGarbage } from "./support/garbage.ts";
import { eventually, processesWith } from "./support/processes.ts";

const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup();
});

const engine = fileURLToPath(new URL("support/openai-server.mjs", import.meta.url));
// Of two, one has to go.
const variants = [{ dop: 1, memoryMib: 600 }];
/** in the command lines of this file's services */
const mark = `judges-of-${process.pid}`;
const judge = { command: [process.execPath, engine, "{port}", mark], variants };

async function serve({ services = { judge }, openai = {}, ...rest }: Record<string, object> = {}) {
  const gpu = { type: "gpu", devices: 1, memoryMibPerDevice: 640, mainMemory: true, services };
  const config = ActionServiceConfig.parse({
    listen: "127.0.0.1:0",
    drivers: ["process"],
    resources: { gpu },
    openai: { listen: "127.0.0.1:0", ...openai },
    ...rest,
  });
  const folder = mkdtempSync(join(tmpdir(), "treadle-openai-"));
  cleanups.push(() => rmSync(folder, { recursive: true, force: true }));
  for (const name of ["a", "b"]) writeFileSync(join(folder, `${name}.token`), `secret-${name}\n`);
  const service = await openActionService(config, folder);
  cleanups.push(() => service.close());
  const base = service.openAiUrl!;
  const post = (body: object | string, { path = "/chat/completions", ...init }: RequestInit & { path?: string } = {}) =>
    fetch(base + path, {
      method: "POST",
      body: typeof body === "string" ? body : JSON.stringify(body),
      ...init,
      headers: { "content-type": "application/json", ...init.headers },
    });
  const chat = (content: string, more: object = {}, init: RequestInit = {}) =>
    post({ model: "judge", messages: [{ role: "user", content }], ...more }, init);
  const load = async (token?: string) => {
    const client = new StatisticsClient({ address: service.address, token });
    const { waiting, running, kinds, restores, tenants } = await client.read();
    client.close();
    return { waiting, running, kinds, restores, tenants };
  };
  const isIdle = () => eventually(async () => (await load()).running === 0);
  return { service, base, post, chat, load, isIdle };
}
const Failure = z.strictObject({
  error: z.strictObject({ message: z.string(), type: z.string(), param: z.null(), code: z.string() }),
});
const failureOf = async (answer: Response | Promise<Response>) => {
  const got = await answer;
  const { error } = Failure.parse(await got.json());
  return { status: got.status, retryAfter: got.headers.get("retry-after"), ...error };
};
const Seen = z.object({
  pid: z.int(),
  seen: z.array(z.object({ url: z.string(), rawHeaders: z.array(z.string()), text: z.string() })),
  closed: z.int(),
  floodedBytes: z.int(),
});
/** What the engine has, asked beside the endpoint. */
const seenAt = async (port: string | null) => Seen.parse(await (await fetch(`http://127.0.0.1:${port}/seen`)).json());

test("OA1 a judgement passes as it is, log-probabilities to the last digit, and nothing that names its client", async () => {
  const { post, chat, base, load } = await serve();
  const text =
    '{ "model":"judge",  "logprobs": true, "temperature":1.0, "messages":[{"role":"user","content":"say \\u00e4"}] }';
  const headers = { authorization: "Bearer mine", cookie: "a=b", "x-treadle-tenant": "t", "x-other": "kept" };
  const answer = await post(text, { path: "/chat/completions?x=1", headers });
  const { pid, seen } = await seenAt(answer.headers.get("x-port"));
  expect(await answer.text()).toBe(
    `{"object": "chat.completion", "model": "judge", "pid": ${pid}, "choices": [{"logprobs": {"content": [{"token": "12", "logprob": -1.0000000000000002e-05, "bytes": [49, 50], "top_logprobs": [{"token": "12", "logprob": -0.10}]}]}}]}`,
  );
  expect(seen).toMatchObject([{ url: "/v1/chat/completions?x=1", text }]);
  expect(seen[0]!.rawHeaders).toContain("kept");
  expect(seen[0]!.rawHeaders.join().toLowerCase()).not.toMatch(/bearer|cookie|x-treadle/);
  const embedded = await post({ model: "judge", input: ["a"] }, { path: "/embeddings" });
  expect(await embedded.text()).toContain('"embedding": [0.10, 2e-5]');
  const refused = await chat("refuse");
  expect([refused.status, refused.headers.get("retry-after"), await refused.text()]).toEqual([
    429,
    "7",
    '{"error": {"message": "slow down", "code": "busy"}}',
  ]);
  expect(await (await fetch(`${base}/models`)).json()).toMatchObject({ object: "list", data: [{ id: "judge" }] });
  expect(await (await fetch(`${base}/models/judge`)).json()).toMatchObject({ id: "judge", object: "model" });
  expect(await failureOf(fetch(`${base}/models/none`))).toMatchObject({ status: 404, code: "model_not_found" });
  const { kinds, restores } = await load();
  expect(kinds.judge).toMatchObject({ completed: 3, failed: 0 });
  expect(restores).toMatchObject([{ service: "judge", devices: 1 }]);
});

test("OA1 a stream passes while it comes", async () => {
  const { chat } = await serve();
  const answer = await chat("say", { stream: true, logprobs: true });
  expect(answer.headers.get("content-type")).toBe("text/event-stream");
  const reader = answer.body!.getReader();
  const first = Buffer.from((await reader.read()).value!).toString();
  expect(first).toMatch(/^data: .*"content": "a".*"logprob": -1.0000000000000002e-05.*\n\n$/);
  // The engine says the rest only now.
  await fetch(`http://127.0.0.1:${answer.headers.get("x-port")}/go`);
  let rest = "";
  for (let got = await reader.read(); !got.done; got = await reader.read()) rest += Buffer.from(got.value).toString();
  expect(rest).toMatch(/"content": "b".*\n\ndata: \[DONE\]\n\n$/s);
});

test("a service is asked at its own paths alone, and another at its own", async () => {
  const services = {
    judge: { ...judge, paths: ["/v1/completions", "/score"] },
    coach: { ...judge, command: [...judge.command, "coach"] },
  };
  const { post, base, load } = await serve({ services });
  const body = { model: "judge", messages: [{ content: "say" }] };
  expect(await failureOf(post(body))).toMatchObject({
    status: 404,
    code: "unknown_url",
    message: "model 'judge' is not served at /v1/chat/completions; it is at /v1/completions, /score",
  });
  expect(await failureOf(fetch(`${base}/../other`, { method: "POST", body: "{}" }))).toMatchObject({
    status: 404,
    code: "unknown_url",
  });
  const before = await load();
  expect([before.restores, before.kinds.judge]).toEqual([[], undefined]);
  const answer = await post(body, { path: "/completions" });
  const { seen } = await seenAt(answer.headers.get("x-port"));
  expect([answer.status, seen.map(({ url }) => url)]).toEqual([200, ["/v1/completions"]]);
  expect((await post(body, { path: "/../score" })).status).toBe(200);
  expect((await post({ ...body, model: "coach" })).status).toBe(200);
});

test("judges that do not fit together take turns on their device, each restored when it is asked", async () => {
  const coach = { ...judge, command: [...judge.command, "coach"] };
  const { post, load } = await serve({ services: { judge, coach } });
  const ask = async (model: string): Promise<string> => {
    const answer = await post({ model, messages: [{ content: "say" }] });
    // The other's process is gone.
    expect(processesWith(mark).length).toBeLessThanOrEqual(1);
    const { model: by, pid } = (await answer.json()) as { model: string; pid: number };
    return `${by} ${pid}`;
  };
  const models = ["judge", "coach", "judge", "coach", "coach", "judge"];
  const answers = await Promise.all(models.map(ask));
  expect(answers.map((answer) => answer.split(" ")[0])).toEqual(models);
  expect(new Set(answers).size).toBeGreaterThanOrEqual(3);
  expect((await load()).restores.map(({ service }) => service)).toEqual(["judge", "coach"]);
});

test("OA2 a client that goes away gives the devices back, whether its request runs or waits", async () => {
  const { chat, load, isIdle } = await serve();
  const port = (await chat("say")).headers.get("x-port");
  const runs = new AbortController();
  const waits = new AbortController();
  const running = chat("hang", {}, { signal: runs.signal }).catch(() => "gone");
  expect(await eventually(async () => (await seenAt(port)).seen.length === 2)).toBe(true);
  const waiting = chat("hang", {}, { signal: waits.signal }).catch(() => "gone");
  expect(await eventually(async () => (await load()).waiting === 1)).toBe(true);
  waits.abort();
  expect(await waiting).toBe("gone");
  expect(await eventually(async () => (await load()).waiting === 0)).toBe(true);
  runs.abort();
  expect(await running).toBe("gone");
  expect(await eventually(async () => (await seenAt(port)).closed === 1)).toBe(true);
  expect(await isIdle()).toBe(true);
  expect((await chat("say")).status).toBe(200);
  const { seen } = await seenAt(port);
  expect(seen.length).toBe(3);
});

test("OA2 so does one whose deadline has passed, and is told so", async () => {
  const { chat, isIdle } = await serve();
  await chat("say");
  expect(await failureOf(chat("hang", {}, { headers: { "x-treadle-deadline-ms": "300" } }))).toMatchObject({
    status: 504,
    type: "server_error",
    code: "action.deadline",
  });
  expect(await failureOf(chat("say", {}, { headers: { "x-treadle-deadline-ms": "soon" } }))).toMatchObject({
    status: 400,
    code: "invalid_deadline",
  });
  expect(await isIdle()).toBe(true);
  expect((await chat("say")).status).toBe(200);
});

test("OA2 a service that dies under a request is told as 502, or breaks the stream that it was in, and comes back", async () => {
  const { chat, load } = await serve();
  const first = await chat("say");
  const { pid } = (await first.json()) as { pid: number };
  expect(await failureOf(chat("die"))).toMatchObject({
    status: 502,
    type: "server_error",
    code: "service_failed",
    message: expect.stringMatching(/^the service ended before its answer did: .*; try again$/),
  });
  const broken = await chat("die", { stream: true });
  expect(broken.status).toBe(200);
  await expect(broken.text()).rejects.toThrow();
  const again = (await (await chat("say")).json()) as { pid: number };
  expect(again.pid).not.toBe(pid);
  expect((await load()).kinds.judge).toMatchObject({ completed: 2, failed: 2 });
});

test("a service that never answers is told with its last words, one that can never run with what it runs on", async () => {
  const services = {
    ends: { command: ["sh", "-c", "echo no such model >&2; exit 1"], variants },
    mute: { command: ["sleep", "74.25"], startTimeoutMs: 300, variants },
    wide: { ...judge, variants: [{ dop: 4, memoryMib: 1 }] },
  };
  const { post, isIdle } = await serve({ services });
  const ask = (model: string) => failureOf(post({ model, messages: [] }));
  expect(await ask("ends")).toMatchObject({ status: 503, message: expect.stringContaining("no such model") });
  expect(await ask("mute")).toMatchObject({ status: 503, message: expect.stringContaining("raise startTimeoutMs") });
  expect(await ask("wide")).toMatchObject({
    status: 400,
    code: "action.impossible",
    message: expect.stringContaining("'4' units of 'gpu' were asked for, one action can get 1"),
  });
  expect(await isIdle()).toBe(true);
  expect(processesWith("74.25")).toEqual([]);
});

test("OA3 hostile bodies are refused as OpenAI's errors, and others are served meanwhile", async () => {
  const { base, post, chat } = await serve({ openai: { bodyMib: 1 } });
  const status = async (answer: Promise<Response>) => {
    const { status, code } = await failureOf(answer);
    return [status, code];
  };
  const tooLarge = `{"model":"judge","x":"${"x".repeat(2 ** 20)}"}`;
  expect(await status(post(tooLarge))).toEqual([413, "body_too_large"]);
  const pieces = ReadableStream.from([Buffer.from(tooLarge.slice(0, 5e5)), Buffer.from(tooLarge.slice(5e5))]);
  const streamed = fetch(`${base}/completions`, {
    method: "POST",
    body: pieces,
    headers: { "content-type": "application/json" },
    duplex: "half",
  } as RequestInit);
  expect(await status(streamed)).toEqual([413, "body_too_large"]);
  expect(await status(post("model=judge"))).toEqual([400, "invalid_json"]);
  expect(await status(post({ model: ["judge"] }))).toEqual([400, "model_missing"]);
  expect(await status(post({ messages: [] }))).toEqual([400, "model_missing"]);
  const deep = 2 ** 19 - 20;
  expect(await status(post(`{"x":${"[".repeat(deep)}${"]".repeat(deep)},"model":"gpt"}`))).toEqual([
    404,
    "model_not_found",
  ]);
  expect(await failureOf(post({ model: "gpt" }))).toMatchObject({
    message: "model 'gpt' is not served; served are 'judge'",
  });
  expect(await status(post({ model: "judge" }, { headers: { "content-type": "text/plain" } }))).toEqual([
    415,
    "unsupported_media_type",
  ]);
  expect(await status(post("x", { headers: { "content-encoding": "gzip" } }))).toEqual([415, "unsupported_media_type"]);
  expect(await status(post({ model: "judge" }, { headers: { origin: "http://evil.example" } }))).toEqual([
    403,
    "not_permitted",
  ]);
  expect(await status(fetch(`${base}/chat/completions`))).toEqual([404, "unknown_url"]);
  const { hostname, port } = new URL(base);
  const raw = (text: string): Promise<string> =>
    new Promise((resolve) => {
      const socket = connect(Number(port), hostname, () => socket.write(text));
      let answer = "";
      socket.on("data", (bytes) => {
        answer += bytes;
        socket.end();
      });
      socket.on("close", () => resolve(answer.split("\r\n")[0]!));
    });
  const head = "Host: x\r\nContent-Type: application/json\r\n";
  expect(await raw(`POST /v1/x HTTP/1.1\r\n${head}Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}x`)).toBe(
    "HTTP/1.1 400 Bad Request",
  );
  const twice = "Content-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}";
  expect(await raw(`POST /v1/x HTTP/1.1\r\n${head}${twice}`)).toBe("HTTP/1.1 415 Unsupported Media Type");
  const both = "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n";
  expect(await raw(`POST /v1/x HTTP/1.1\r\n${head}${both}`)).toBe("HTTP/1.1 400 Bad Request");
  expect(await raw(`POST /v1/../seen HTTP/1.1\r\n${head}Content-Length: 2\r\n\r\n{}`)).toBe("HTTP/1.1 404 Not Found");
  expect((await chat("say")).status).toBe(200);
});

test("OA3 OA4 a tenant is its token, and one that asks too much at once is told when to try again", async () => {
  const tenants = { a: { tokenFile: "a.token" }, b: { tokenFile: "b.token" } };
  const { chat, base, load } = await serve({ tenants, openai: { requests: 2 } });
  const as = (name: string, content: string, signal: AbortSignal | null = null) =>
    chat(content, {}, { headers: { authorization: `Bearer secret-${name}` }, signal });
  expect(await failureOf(chat("say"))).toMatchObject({ status: 401, type: "authentication_error" });
  expect(await failureOf(as("c", "say"))).toMatchObject({ status: 401, code: "invalid_api_key" });
  expect((await fetch(`${base}/models`)).status).toBe(401);
  const gone = new AbortController();
  const held = [1, 2].map(() => as("a", "hang", gone.signal).catch(() => "gone"));
  expect(await eventually(async () => (await load("secret-a")).tenants.a?.running === 1)).toBe(true);
  expect(await eventually(async () => (await load("secret-a")).tenants.a?.waiting === 1)).toBe(true);
  expect(await failureOf(as("a", "say"))).toMatchObject({
    status: 429,
    type: "rate_limit_error",
    code: "queue_full",
    retryAfter: "1",
    message: expect.stringContaining("raise openai.requests"),
  });
  // Another tenant's is queued.
  const other = as("b", "say");
  expect(await eventually(async () => (await load("secret-b")).tenants.b?.waiting === 1)).toBe(true);
  gone.abort();
  expect(await Promise.all(held)).toEqual(["gone", "gone"]);
  expect((await other).status).toBe(200);
  expect((await as("a", "say")).status).toBe(200);
});

test("OA3 bodies of a tenant that wait are bounded together", async () => {
  const { chat, load } = await serve({ openai: { bodyMib: 1, waitingMib: 1.5 } });
  const gone = new AbortController();
  const large = { padding: "x".repeat(1e6) };
  const held = chat("hang", large, { signal: gone.signal }).catch(() => "gone");
  expect(await eventually(async () => (await load()).running === 1)).toBe(true);
  expect(await failureOf(chat("say", large))).toMatchObject({
    status: 429,
    message: expect.stringContaining("raise openai.waitingMib"),
  });
  gone.abort();
  expect(await held).toBe("gone");
  expect(await eventually(async () => (await chat("say", large)).status === 200)).toBe(true);
});

test.skipIf(process.platform !== "linux" || process.getuid?.() !== 0)(
  "OA4 without tokens another user of this machine may not ask (as root on Linux)",
  async () => {
    const { base } = await serve();
    const script = `fetch(${JSON.stringify(`${base}/models`)}).then(async (r) => console.log(r.status, await r.text()))`;
    const child = spawn(process.execPath, ["-e", script], {
      uid: 65_534,
      gid: 65_534,
      cwd: "/",
      stdio: ["ignore", "pipe", "inherit"],
    });
    let output = "";
    child.stdout.on("data", (bytes) => {
      output += bytes;
    });
    await new Promise((resolve) => child.once("close", resolve));
    expect(output).toMatch(/^403 .*user '65534' may not call: this server has no tokens/);
  },
);

test("a service that is drained takes nothing new and lets the rest end; OA5 one that closes leaves nothing", async () => {
  const { service, chat, base } = await serve();
  const answer = await chat("say", { stream: true });
  const drained = service.drain(60_000);
  expect(await failureOf(chat("say"))).toMatchObject({ status: 503, code: "draining" });
  await fetch(`http://127.0.0.1:${answer.headers.get("x-port")}/go`);
  expect(await answer.text()).toContain("[DONE]");
  expect(await drained).toBe(0);
  await service.close();
  await expect(fetch(`${base}/models`)).rejects.toThrow();
  expect(processesWith(mark)).toEqual([]);
});

const openssl = spawnSync("openssl", ["version"], { stdio: "ignore" }).status === 0;
test.skipIf(!openssl)("serves over TLS, and not without it (needs openssl)", async () => {
  const folder = mkdtempSync(join(tmpdir(), "treadle-openai-tls-"));
  cleanups.push(() => rmSync(folder, { recursive: true }));
  const files = ["-keyout", join(folder, "key"), "-out", join(folder, "cert")];
  const names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"];
  const kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"];
  execFileSync("openssl", ["req", "-x509", ...kind, ...names, ...files], { stdio: "ignore" });
  const tls = { key: join(folder, "key"), certificate: join(folder, "cert") };
  const { base, service } = await serve({ tls, openai: { listen: "localhost:0" } });
  expect(service.openAiUrl).toMatch(/^https:/);
  const ask = (url: string, options: object): Promise<string> =>
    new Promise((resolve, reject) => {
      const client = url.startsWith("https:") ? https : http;
      client
        .get(`${url}/models`, options, async (answer) => resolve((await answer.toArray()).join("")))
        .on("error", reject);
    });
  expect(await ask(base, { ca: readFileSync(join(folder, "cert")) })).toContain('"judge"');
  await expect(ask(base, {})).rejects.toThrow(/self-signed|self signed/);
  await expect(ask(base.replace("https", "http"), {})).rejects.toThrow();
});

/** The endpoint in front of one service that is not started by it. */
async function before(
  upstream: http.Server,
  own: { readonly stallMs?: number; readonly requestMs?: number; readonly headersMs?: number } = {},
) {
  let looks = 0;
  await new Promise<void>((resolve) => upstream.listen(0, "127.0.0.1", resolve));
  cleanups.push(() => {
    upstream.close();
    upstream.closeAllConnections();
  });
  const pool = new ActionPool({ managers: [new QuotaManager("judge", { concurrency: 4 })] });
  const endpoint = await serveOpenAi({
    address: "127.0.0.1:0",
    pool,
    services: {
      served: [{ name: "judge", resource: "judge", dops: [1], serialShare: 0, paths: ["/v1/*"] }],
      urlOf: () => `http://127.0.0.1:${(upstream.address() as AddressInfo).port}`,
      endIfDead: async () => {
        looks++;
      },
      restoreCosts: () => [],
    },
    requests: 8,
    bodyBytes: 2 ** 21,
    waitingBytes: 2 ** 22,
    ...own,
  });
  cleanups.push(async () => {
    await endpoint.close();
    await pool.close();
  });
  const open = (): Socket => {
    const client = connect(endpoint.port, "127.0.0.1");
    cleanups.push(() => client.destroy());
    client.on("error", () => {});
    return client;
  };
  return { pool, open, numLooks: () => looks };
}

const requestOf = (body: string): string =>
  `POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: ${body.length}\r\n\r\n${body}`;
const textOf = async (client: Socket): Promise<string> => {
  const pieces: Buffer[] = [];
  client.on("data", (piece: Buffer) => pieces.push(piece));
  await new Promise((resolve) => client.once("close", resolve));
  return Buffer.concat(pieces).toString();
};

test("OA3 a body in the smallest pieces takes no more memory than another", async () => {
  const upstream = createServer((request, response) => {
    request.resume().once("end", () => response.end("{}"));
  });
  const { open } = await before(upstream, { requestMs: 600_000 });
  const client = open();
  const length = 2 ** 20;
  const chunks = Buffer.from("1\r\n \r\n".repeat(2 ** 16));
  client.write("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n");
  client.write("Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n");
  for (let sent = 0; sent < length; sent += 2 ** 16) await new Promise((resolve) => client.write(chunks, resolve));
  // What the endpoint has read is kept until the rest comes.
  await new Promise((resolve) => setTimeout(resolve, 500));
  collectGarbage();
  const { heapUsed, arrayBuffers } = process.memoryUsage();
  const answered = once(client, "data");
  client.write('f\r\n"model":"judge"\r\n1\r\n}\r\n0\r\n\r\n');
  expect(String(await answered)).toMatch(/^HTTP\/1.1 200 /);
  client.destroy();
  await new Promise((resolve) => setTimeout(resolve, 500));
  collectGarbage();
  const after = process.memoryUsage();
  expect(heapUsed + arrayBuffers - after.heapUsed - after.arrayBuffers).toBeLessThan(16 * length);
});

test("OA2 requests that follow without a pause are answered in full, however long one takes; what drips in ends", async () => {
  const upstream = createServer((request, response) => {
    let text = "";
    request.setEncoding("utf8").on("data", (piece) => {
      text += piece;
    });
    request.once("end", () =>
      setTimeout(() => response.end(text), z.object({ ms: z.int() }).parse(JSON.parse(text)).ms),
    );
  });
  const { open } = await before(upstream, { requestMs: 1000 });
  const client = open();
  const said = textOf(client);
  client.write(requestOf('{"model":"judge","ms":100}') + requestOf('{"model":"judge","ms":2500}'));
  expect((await said).match(/"ms":\d+/g)).toEqual(['"ms":100', '"ms":2500']);
  const dripping = open();
  dripping.write(`GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n${requestOf(" ".repeat(100)).slice(0, -90)}`);
  const drips = setInterval(() => dripping.write(" "), 200);
  cleanups.push(() => clearInterval(drips));
  expect(await textOf(dripping)).toContain('"judge"');
});

test.each(["nothing", "pieces of the next request"])(
  "OA2 a connection ends so long after an answer, and not sooner, where what comes is %s",
  async (what) => {
    const upstream = createServer((request, response) => {
      request.resume().once("end", () => response.end("{}"));
    });
    const { open } = await before(upstream, { requestMs: 1000, headersMs: 600_000 });
    const client = open();
    const sent = performance.now();
    client.write(requestOf('{"model":"judge"}'));
    const answer = String((await once(client, "data"))[0]);
    expect(answer).toMatch(/^HTTP\/1.1 200 /);
    // Node would end it by a time of its own, and say so.
    expect(answer).not.toMatch(/keep-alive: timeout/i);
    if (what !== "nothing") {
      client.write("POST /v1/completions HTTP/1.1\r\nX: ");
      const drips = setInterval(() => client.write("x"), 100);
      cleanups.push(() => clearInterval(drips));
    }
    await textOf(client);
    expect(performance.now() - sent).toBeGreaterThan(990);
  },
);

test("OA2 a service whose answer was waited for in vain is looked at before another gets its devices", async () => {
  const { pool, open, numLooks } = await before(createServer(() => {}));
  const client = open();
  client.write(requestOf('{"model":"judge"}').replace("Host: x", "Host: x\r\nX-Treadle-Deadline-Ms: 300"));
  expect(String((await once(client, "data"))[0])).toMatch(/^HTTP\/1.1 504 /);
  expect(await eventually(() => pool.numRunning === 0)).toBe(true);
  expect(numLooks()).toBe(1);
});

test("OA2 a service that answers with another protocol is told as failed, and holds nothing", async () => {
  const upstream = createServer();
  upstream.on("upgrade", () => {});
  upstream.on("connection", (socket) => {
    socket.removeAllListeners("data");
    socket.on("data", () =>
      socket.write("HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n"),
    );
  });
  const { pool, open } = await before(upstream);
  const client = open();
  client.write(requestOf('{"model":"judge"}'));
  expect(String((await once(client, "data"))[0])).toMatch(/^HTTP\/1.1 502 /);
  expect(await eventually(() => pool.numRunning === 0)).toBe(true);
});

test("a service's status line with bytes that cannot be sent on ends nothing, and its answer passes", async () => {
  const lines = ["200 \x01", "299 \x7f\xff", "099 low"];
  const upstream = createServer((request, response) => {
    request.resume().once("end", () => {
      response.socket!.end(`HTTP/1.1 ${lines.shift()}\r\nContent-Length: 2\r\n\r\n{}`, "latin1");
    });
  });
  const { pool, open } = await before(upstream);
  for (const status of ["200 OK", "299 unknown", "502 Bad Gateway"]) {
    const client = open();
    client.write(requestOf('{"model":"judge"}'));
    expect(String((await once(client, "data"))[0]).split("\r\n")[0]).toBe(`HTTP/1.1 ${status}`);
  }
  expect(lines).toEqual([]);
  expect(await eventually(() => pool.numRunning === 0)).toBe(true);
});

test("OA2 OA3 of a client that reads nothing little is kept, and it does not hold what it was granted", async () => {
  let written = 0;
  let isClosed = false;
  const upstream = createServer((_, response) => {
    response.on("close", () => {
      isClosed = true;
    });
    const piece = Buffer.alloc(2 ** 16);
    const write = (): void => {
      do written += piece.length;
      while (response.write(piece));
    };
    response.on("drain", write);
    write();
  });
  const { pool, open } = await before(upstream, { stallMs: 300 });
  const client = open().pause();
  const head = "Host: x\r\nContent-Type: application/json\r\nContent-Length: 17\r\n";
  client.write(`POST /v1/completions HTTP/1.1\r\n${head}\r\n{"model":"judge"}`);
  expect(await eventually(() => isClosed && pool.numRunning === 0)).toBe(true);
  expect(written).toBeGreaterThan(0);
  // What the kernel keeps of two connections, and little more.
  expect(written).toBeLessThan(48 * 2 ** 20);
});

test.each([
  [{ resources: {} }, /openai: there is no model: add a resource/],
  [{ openai: { listen: "0.0.0.0:1" } }, /openai.listen: other machines reach this address/],
])("a configuration that cannot be served is refused by key: %s", (own, message) => {
  const gpu = { type: "gpu", devices: 1, memoryMibPerDevice: 1, services: { judge } };
  const parsed = ActionServiceConfig.safeParse({ resources: { gpu }, openai: {}, ...own });
  const issues = parsed.error!.issues.map(({ path, message }) => `${path.join(".")}: ${message}`);
  expect(issues.join("\n")).toMatch(message);
});
