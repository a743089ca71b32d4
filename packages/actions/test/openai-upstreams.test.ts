import { execFileSync, spawnSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer, type IncomingMessage, type RequestListener, type ServerResponse } from "node:http";
import { createServer as createTlsServer } from "node:https";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import * as grpc from "@grpc/grpc-js";
import { afterEach, expect, test } from "vitest";
import { ActionServiceConfig, openActionService, StatisticsClient } from "../src/serve.ts";
import { connectActions, outputOf } from "./support/client.ts";
import { eventually } from "./support/processes.ts";

const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup();
});

type Asked = { readonly request: IncomingMessage; readonly response: ServerResponse; readonly text: string };

const hasOpenssl = spawnSync("openssl", ["version"], { stdio: "ignore" }).status === 0;

/** A stand-in for an external API, and the door before it. `upstream` are further keys of its configuration. The first `numClosed` connections are ended at once, which by TLS is not reaching it. */
async function serve(
  answer: (asked: Asked, count: number) => unknown,
  {
    isEncrypted = false,
    numClosed = 0,
    upstream = {},
    quota = {},
    deadlineSeconds,
    ...config
  }: Record<string, unknown> = {},
) {
  const folder = mkdtempSync(join(tmpdir(), "treadle-upstream-"));
  cleanups.push(() => rmSync(folder, { recursive: true }));
  for (const name of ["api", "a", "b"]) writeFileSync(join(folder, `${name}.key`), `secret-${name}\n`);
  let count = 0;
  const onRequest: RequestListener = async (request, response) => {
    let text = "";
    for await (const piece of request) text += piece;
    answer({ request, response, text }, count++);
  };
  let api = createServer(onRequest);
  if (isEncrypted) {
    const files = ["-keyout", join(folder, "server.key"), "-out", join(folder, "server.crt")];
    const names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"];
    const kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"];
    execFileSync("openssl", ["req", "-x509", ...kind, ...names, ...files], { stdio: "ignore" });
    const [key, cert] = ["server.key", "server.crt"].map((name) => readFileSync(join(folder, name)));
    api = createTlsServer({ key, cert }, onRequest);
  }
  let numConnected = 0;
  api.on("connection", (socket) => {
    if (numConnected++ < Number(numClosed)) socket.destroy();
  });
  await new Promise<void>((resolve) => api.listen(0, "localhost", resolve));
  cleanups.push(() => {
    api.close();
    api.closeAllConnections();
  });
  const { port } = api.address() as AddressInfo;
  const parsed = ActionServiceConfig.parse({
    listen: "127.0.0.1:0",
    drivers: ["process"],
    resources: { api: { type: "quota", concurrency: 4, ...(quota as object) } },
    openai: {
      listen: "127.0.0.1:0",
      deadlineSeconds,
      upstreams: [
        {
          url: `${isEncrypted ? "https" : "http"}://localhost:${port}/base/v1`,
          keyFile: "api.key",
          quota: "api",
          models: { judge: "vendor/large-judge", small: "small" },
          ...(upstream as object),
        },
      ],
    },
    ...config,
  });
  const service = await openActionService(parsed, folder);
  cleanups.push(() => service.close());
  const post = (body: string, headers: Record<string, string> = {}, path = "/chat/completions") =>
    fetch(service.openAiUrl! + path, {
      method: "POST",
      body,
      headers: { "content-type": "application/json", ...headers },
    });
  const statistics = async () => {
    const client = new StatisticsClient({ address: service.address, token: undefined });
    const read = await client.read();
    client.close();
    return read;
  };
  /** The same by `Submit`. */
  const submit = (body: string, message: object = {}, request: object = {}) => {
    const client = connectActions(service.address);
    cleanups.push(client.close);
    const headers = { "Content-Type": "application/json" };
    const asked = { path: "/v1/chat/completions", headers, body: Buffer.from(body), ...request };
    return client.submit({ service: "judge", kind: "", cost: {}, request: asked, ...message });
  };
  return { post, submit, statistics, url: service.openAiUrl!, numAsked: () => count };
}

const question = '{ "logprobs":true, "model":"judge" , "n":1.0, "messages":[{"model":"kept","content":"\\u00e4"}] }';
const judgement = '{"choices": [{"logprobs": {"content": [{"token": "12", "logprob": -1.0000000000000002e-05}]}}]}';

test.each(hasOpenssl ? [false, true] : [false])(
  "UJ1 a judgement of an external API passes as it is, by the server's key and not the tenant's (encrypted: %s)",
  async (isEncrypted) => {
    const seen: Asked[] = [];
    const { post, url, statistics } = await serve(
      (asked) => {
        seen.push(asked);
        const headers = { "content-type": "application/json", "x-own": "kept", "set-cookie": "account=1" };
        asked.response.writeHead(200, { ...headers, "openai-organization": "ours" }).end(judgement);
      },
      { isEncrypted, upstream: isEncrypted ? { authority: "server.crt" } : {} },
    );
    const own = { authorization: "Bearer mine", "x-api-key": "mine", "openai-organization": "mine", cookie: "mine" };
    const odd = { "x-http-method-override": "DELETE", "x-original-url": "/v1/files", "x-rewrite-url": "/v1/files" };
    const sent = {
      ...own,
      ...odd,
      "content-type": 'Application/JSON ; charset="UTF-8"',
      accept: "kept",
      "user-agent": "u",
    };
    const answer = await post(question, sent, "/chat/completions?a=b");
    expect([answer.status, await answer.text(), answer.headers.get("x-own")]).toEqual([200, judgement, "kept"]);
    expect([answer.headers.get("set-cookie"), answer.headers.get("openai-organization")]).toEqual([null, null]);
    const [{ request, text }] = seen as [Asked];
    expect(request.url).toBe("/base/v1/chat/completions");
    expect(request.headers).toEqual({
      host: expect.stringMatching(/^localhost:\d+$/),
      "content-type": "application/json",
      "content-length": String(Buffer.byteLength(text)),
      accept: "kept",
      "accept-encoding": expect.any(String),
      "user-agent": "u",
      authorization: "Bearer secret-api",
      connection: "close",
    });
    expect(text).toBe(question.replace('"judge"', '"vendor/large-judge"'));
    const listed = (await (await fetch(`${url}/models`)).json()) as { data: { id: string }[] };
    expect(listed.data.map(({ id }) => id)).toEqual(["judge", "small"]);
    const { kinds, resources } = await statistics();
    expect(kinds["judge"]).toMatchObject({ completed: 1, failed: 0 });
    expect(resources["api"]).toMatchObject({ held: 0 });
  },
);

test.skipIf(!hasOpenssl)(
  "UJ1 an API whose certificate nobody vouches for is sent nothing (needs openssl)",
  async () => {
    const { post, numAsked } = await serve(({ response }) => response.end(), { isEncrypted: true });
    const answer = await post(question, { "x-treadle-deadline-ms": "5000" });
    expect(answer.status).toBe(503);
    expect(await answer.text()).toMatch(/the service cannot be reached: .*self.signed certificate/);
    expect(numAsked()).toBe(0);
  },
);

test.each([401, 403, 407])(
  "UJ1 an API that does not take the server's key is told as the server's failure, without its words (%s)",
  async (status) => {
    const { post } = await serve(({ response }) => response.writeHead(status).end("wrong key: secr****-api"));
    const answer = await post(question);
    const text = await answer.text();
    expect([answer.status, text]).toEqual([502, expect.stringContaining("does not take this server's key")]);
    expect(text).not.toContain("secr");
  },
);

test("UJ1 a stream passes while it comes, and a client that goes away gives its units back", async () => {
  let go = (): void => {};
  let numOpen = 0;
  const { post, statistics } = await serve(({ response }) => {
    numOpen++;
    response.on("close", () => numOpen--);
    response.writeHead(200, { "content-type": "text/event-stream" }).write("data: a\n\n");
    go = () => response.end("data: [DONE]\n\n");
  });
  const answer = await post(question);
  const reader = answer.body!.getReader();
  expect(Buffer.from((await reader.read()).value!).toString()).toBe("data: a\n\n");
  expect((await statistics()).resources["api"]).toMatchObject({ held: 1 });
  go();
  expect(Buffer.from((await reader.read()).value!).toString()).toBe("data: [DONE]\n\n");
  const other = await post(question);
  await other.body!.cancel();
  expect(await eventually(async () => (await statistics()).resources["api"]!.held === 0)).toBe(true);
  expect(await eventually(() => numOpen === 0)).toBe(true);
});

test("a status line of the API with bytes that cannot be sent on ends nothing, and its answer passes", async () => {
  const { post, numAsked } = await serve(({ response }) =>
    response.socket!.end("HTTP/1.1 200 \x01\r\nContent-Length: 2\r\n\r\n{}"),
  );
  for (const count of [1, 2]) {
    const answer = await post(question);
    expect([answer.status, answer.statusText, await answer.text(), numAsked()]).toEqual([200, "OK", "{}", count]);
  }
});

test("UJ2 a refusal stops everybody until its Retry-After, and the request is tried again then", async () => {
  const times: number[] = [];
  const { post, statistics } = await serve(({ response }, count) => {
    times.push(performance.now());
    if (count === 0) response.writeHead(429, { "retry-after": "1" });
    response.end(`answer ${count}`);
  });
  const first = post(question);
  expect(await eventually(() => times.length === 1)).toBe(true);
  const second = post(question.replace("judge", "small"));
  const answers = await Promise.all([first, second]);
  expect(answers.map(({ status }) => status)).toEqual([200, 200]);
  expect(times.length).toBe(3);
  // Never earlier than it asked for; timers may be a millisecond short.
  for (const time of times.slice(1)) expect(time - times[0]!).toBeGreaterThan(990);
  expect((await statistics()).kinds["judge"]).toMatchObject({ completed: 1, retried: 1 });
});

test("UJ2 where its deadline comes first, a request is answered as the API did, at once", async () => {
  const { post, numAsked } = await serve(({ response }) => response.writeHead(429, { "retry-after": "600" }).end("no"));
  const late = await post(question, { "x-treadle-deadline-ms": "60000" });
  expect([late.status, late.headers.get("retry-after"), await late.text()]).toEqual([429, "600", "no"]);
  expect(numAsked()).toBe(1);
  // The quota is stopped for as long.
  const waits = await post(question, { "x-treadle-deadline-ms": "300" });
  expect([waits.status, numAsked()]).toEqual([504, 1]);
});

test.each([{}, { "retry-after": "soon" }])(
  "UJ2 a refusal that does not say when to try again says it here: when the quota takes calls again (%o)",
  async (headers) => {
    const { post, numAsked } = await serve(({ response }) => response.writeHead(429, headers).end("no"), {
      upstream: { retries: 0 },
    });
    for (const most of [1, 2]) {
      const answer = await post(question);
      expect([answer.status, await answer.text()]).toEqual([429, "no"]);
      // What is left of it once this machine comes to answer.
      const seconds = Number(answer.headers.get("retry-after"));
      expect(seconds).toBeGreaterThanOrEqual(1);
      expect(seconds).toBeLessThanOrEqual(most);
    }
    expect(numAsked()).toBe(2);
  },
);

test.each(["099", "1000"])("a status that is none is told as 502, with what it was (%s)", async (status) => {
  const { post, numAsked } = await serve(({ response }) =>
    response.socket!.end(`HTTP/1.1 ${status} odd\r\nContent-Length: 2\r\n\r\n{}`),
  );
  const answer = await post(question);
  const { error } = (await answer.json()) as { error: { message: string; code: string } };
  expect([answer.status, error.code]).toEqual([502, "service_failed"]);
  expect(error.message).toContain(`the service answered with status '${Number(status)}', which no answer has`);
  expect(numAsked()).toBe(1);
});

test("a request without a deadline has the configuration's: an API that never answers keeps no part of the quota", async () => {
  const { post, statistics } = await serve(() => {}, { deadlineSeconds: 0.3 });
  const answer = await post(question);
  expect([answer.status, await answer.text()]).toEqual([504, expect.stringContaining("action.deadline")]);
  expect(await eventually(async () => (await statistics()).resources["api"]!.held === 0)).toBe(true);
});

test("UJ2 attempts are as many as the configuration says, for refusals alone", async () => {
  const statuses = [429, 503, 500, 200];
  const { post, numAsked } = await serve(
    ({ response }, count) => response.writeHead(statuses[count]!, { "retry-after": "0" }).end("no"),
    { upstream: { retries: 1 } },
  );
  expect([(await post(question)).status, numAsked()]).toEqual([503, 2]);
  expect([(await post(question)).status, numAsked()]).toEqual([500, 3]);
  expect([(await post(question)).status, numAsked()]).toEqual([200, 4]);
});

test("tenants share the quota: no more run at once than it lets, whoever asks", async () => {
  let numOpen = 0;
  let most = 0;
  const tenants = { a: { tokenFile: "a.key" }, b: { tokenFile: "b.key" } };
  const { post } = await serve(
    ({ response }) => {
      most = Math.max(most, ++numOpen);
      setTimeout(() => {
        numOpen--;
        response.end("{}");
      }, 30);
    },
    { tenants, upstream: { units: 2 } },
  );
  expect((await post(question)).status).toBe(401);
  const asked = Array.from({ length: 12 }, (_, i) => post(question, { authorization: `Bearer secret-${"ab"[i % 2]}` }));
  expect(new Set((await Promise.all(asked)).map(({ status }) => status))).toEqual(new Set([200]));
  expect(most).toBe(2);
});

test("UJ1 what would reach another model or another call of the API is refused, and asked of nobody", async () => {
  const { post, numAsked } = await serve(({ response }) => response.end());
  const bodies: [string, string][] = [
    ['{"model":"dear","model":"judge"}', "model: was given 2 times"],
    ['{"model":"judge","MODEL":"dear"}', "model: was given 2 times"],
    ['{"m\\u004fdel":"dear","model":"judge"}', "model: was given 2 times"],
    // By NUL bytes, Python takes a body for UTF-16 or UTF-32.
    ['{"x":"\0","model":"judge"}', "the body has NUL bytes"],
    ['{"model":"vendor/large-judge"}', "model 'vendor/large-judge' is not served; served are 'judge', 'small'"],
  ];
  for (const [body, message] of bodies) {
    const answer = await post(body);
    expect([body, await answer.text()]).toEqual([body, expect.stringContaining(message)]);
    expect([400, 404]).toContain(answer.status);
  }
  for (const type of ["application/json-seq", "application/json; charset=utf-16"])
    expect([type, (await post(question, { "content-type": type })).status]).toEqual([type, 415]);
  for (const path of ["/fine_tuning/jobs", "/files", "/../admin", "/chat/completions/x"])
    expect([path, (await post(question, {}, path)).status]).toEqual([path, 404]);
  expect(numAsked()).toBe(0);
});

test("AQ1 UJ1 a request in Submit is sent there as by OpenAI's API, within the same quota", async () => {
  const seen: Asked[] = [];
  const { submit, statistics } = await serve((asked) => {
    seen.push(asked);
    asked.response
      .writeHead(200, { "x-own": "kept", "set-cookie": "account=1", "openai-project": "ours" })
      .end(judgement);
  });
  const headers = { "Content-Type": "application/json", accept: "kept", "X-Api-Key": "mine" };
  const one = submit(question, {}, { path: "/v1/chat/completions?a=b", headers });
  expect(await one.ended).toBeUndefined();
  expect(outputOf(one)).toBe(judgement);
  expect(one.events[1]!.started).toMatchObject({ allocation: { api: 1 } });
  const { finished } = one.events.at(-1)!;
  expect(finished).toMatchObject({ status: "answered", http_status: 200, headers: { "x-own": "kept" } });
  expect(Object.keys(finished!["headers"]!)).not.toEqual(
    expect.arrayContaining([expect.stringMatching(/cookie|openai/)]),
  );
  const [{ request, text }] = seen as [Asked];
  expect([request.method, request.url, text]).toEqual([
    "POST",
    "/base/v1/chat/completions",
    question.replace('"judge"', '"vendor/large-judge"'),
  ]);
  expect(request.headers).toEqual({
    host: expect.stringMatching(/^localhost:\d+$/),
    "content-type": "application/json",
    "content-length": String(Buffer.byteLength(text)),
    accept: "kept",
    authorization: "Bearer secret-api",
    connection: "close",
  });
  const { kinds, resources } = await statistics();
  expect(kinds["judge"]).toMatchObject({ completed: 1, failed: 0 });
  expect(resources["api"]).toMatchObject({ held: 0 });
});

test("AQ1 UJ1 what Submit may not ask of an external API is refused by its field, and asked of nobody", async () => {
  const { submit, numAsked } = await serve(({ response }) => response.end());
  const refused: [object, object, string, RegExp][] = [
    [
      {},
      { path: "/v1/files" },
      question,
      /request\.path: '\/v1\/files' is not served by 'judge'; served are \/v1\/chat.*, or add it to 'paths' of its entry in openai\.upstreams$/,
    ],
    [{}, { path: "/v1/chat/completions/../files" }, question, /request\.path: .* is not served by 'judge'/],
    [{}, { method: "DELETE" }, question, /request\.method: 'DELETE' is not sent to an external API; POST is/],
    [{}, { headers: {} }, question, /request\.headers: an external API is sent JSON/],
    [{}, { headers: { "content-type": "application/json; charset=utf-16" } }, question, /request\.headers: /],
    [{}, {}, '{"model":"small"}', /request\.body: model: is 'small', and 'judge' is asked/],
    [{}, {}, '{"model":"dear","model":"judge"}', /request\.body: model: was given 2 times/],
    [{}, {}, "judge", /request\.body: the body, of 5 bytes, is no JSON object/],
    [
      { cost: { api: { fixed: 0.1 } } },
      {},
      question,
      /cost\.api: is what the configuration says of 'judge'; leave it out/,
    ],
    [{ service: "dear" }, {}, question, /service: 'dear' is not served; served are 'judge', 'small'/],
  ];
  for (const [message, request, body, details] of refused)
    expect(await submit(body, message, request).ended).toMatchObject({ details: expect.stringMatching(details) });
  expect(numAsked()).toBe(0);
});

test("UJ1 UJ2 of Submit: refusals are tried again as by OpenAI's API, failures as the message says, and a wrong key is not told", async () => {
  const statuses = [429, 200, 503, 503, 500, 500, 200, 401];
  const { submit, numAsked } = await serve(
    ({ response }, count) => response.writeHead(statuses[count]!, { "retry-after": "0" }).end(`secr: ${count}`),
    { upstream: { retries: 1 } },
  );
  const answer = async (message: object = {}) => {
    const one = submit(question, message);
    const error = await one.ended;
    return [error?.details ?? one.events.at(-1)!.finished?.["http_status"], numAsked()];
  };
  expect(await answer()).toEqual([200, 2]);
  expect(await answer()).toEqual([503, 4]);
  expect(await answer()).toEqual([500, 5]);
  expect(await answer({ retries: 1 })).toEqual([200, 7]);
  expect(await answer()).toEqual([expect.stringMatching(/^(?!.*secr).*does not take this server's key/), 8]);
});

test.each([
  [0, 3, [429], 429],
  [0, 3, [500, 502, 504, 503], 503],
  [4, 1, [429, 500, 200], 200],
  [1, 1, [500, 429, 200], 200],
  [1, 1, [429, 503], 503],
  [2, 1, [429, 504, 503, 500], 500],
])(
  "UJ2 of Submit: %i further attempts of the configuration are for refusals, %i of the message for failures (%j)",
  async (ofConfiguration, ofMessage, statuses, told) => {
    const { submit, numAsked } = await serve(
      ({ response }, count) => response.writeHead(statuses[count] ?? 200, { "retry-after": "0" }).end(),
      { upstream: { retries: ofConfiguration } },
    );
    const one = submit(question, { retries: ofMessage });
    expect(await one.ended).toBeUndefined();
    expect([one.events.at(-1)!.finished!["http_status"], numAsked()]).toEqual([told, statuses.length]);
  },
);

test.each([
  [429, 0],
  [429, 3],
  [500, 3],
])(
  "UJ2 of Submit: where its deadline comes first, a request is answered as the API did, at once (%i, %i retries)",
  async (status, retries) => {
    const { submit, numAsked } = await serve(({ response }) =>
      response.writeHead(status, { "retry-after": "600" }).end("no"),
    );
    const late = submit(question, { retries, deadline_ms: 60_000 });
    expect(await late.ended).toBeUndefined();
    expect(late.events.at(-1)!.finished).toMatchObject({ http_status: status, headers: { "retry-after": "600" } });
    expect([outputOf(late), numAsked()]).toEqual(["no", 1]);
    if (status !== 429) return;
    // The quota is stopped for as long.
    const waits = submit(question, { retries, deadline_ms: 300 });
    expect(await waits.ended).toMatchObject({ code: grpc.status.DEADLINE_EXCEEDED });
    expect(numAsked()).toBe(1);
  },
);

test.each([{}, { "retry-after": "soon" }])(
  "UJ2 of Submit: a refusal that does not say when to try again says it here (%o)",
  async (headers) => {
    const { submit } = await serve(({ response }) => response.writeHead(429, headers).end("no"), {
      upstream: { retries: 0 },
    });
    for (const seconds of [/^1$/, /^[12]$/]) {
      const one = submit(question);
      expect(await one.ended).toBeUndefined();
      const headers = { "retry-after": expect.stringMatching(seconds) };
      expect(one.events.at(-1)!.finished).toMatchObject({ http_status: 429, headers });
    }
  },
);

test("UJ2 of Submit: an API that is not reached is asked again while an attempt of either kind is left", async () => {
  const { submit } = await serve(() => {}, { upstream: { url: "http://127.0.0.1:1/v1", retries: 1 } });
  const one = submit(question, { retries: 1 });
  expect(await one.ended).toMatchObject({
    code: grpc.status.UNAVAILABLE,
    details: expect.stringMatching(/the service cannot be reached/),
  });
  expect(one.events.filter(({ started }) => started !== undefined)).toHaveLength(3);
});

test.skipIf(!hasOpenssl)(
  "UJ2 of Submit: the last attempt is answered as the API did, where the others did not reach it (needs openssl)",
  async () => {
    const { submit, numAsked } = await serve(
      ({ response }) => response.writeHead(429, { "retry-after": "0" }).end("no"),
      { isEncrypted: true, numClosed: 2, upstream: { authority: "server.crt", retries: 1 } },
    );
    const one = submit(question, { retries: 1 });
    expect(await one.ended).toBeUndefined();
    expect([one.events.at(-1)!.finished!["http_status"], outputOf(one), numAsked()]).toEqual([429, "no", 1]);
  },
);

test("UJ2 of Submit: what an external API may have done is not asked twice, unless the message says so", async () => {
  const { submit, numAsked } = await serve(({ request, response }, count) => {
    if (count === 2) response.end("well");
    else request.socket.destroy();
  });
  expect(await submit(question).ended).toMatchObject({
    details: expect.stringMatching(/the service ended before its/),
  });
  expect(numAsked()).toBe(1);
  const again = submit(question, { retries: 1 });
  expect(await again.ended).toBeUndefined();
  expect([outputOf(again), numAsked()]).toEqual(["well", 3]);
  expect(await submit(question, { retries: 1 }).ended).toMatchObject({
    details: expect.stringMatching(/the service ended before its/),
  });
  expect(numAsked()).toBe(5);
});

test("a configuration of an API that cannot be served is refused by key", async () => {
  const upstream = { url: "https://api.example.com/v1", quota: "api", models: { judge: "judge" } };
  const of = (own: object, more: object = {}) => ({
    resources: { api: { type: "quota", concurrency: 1 } },
    openai: { upstreams: [{ ...upstream, ...own }] },
    ...more,
  });
  const gpu = { type: "gpu", devices: 1, memoryMibPerDevice: 1 };
  const judge = { command: ["x"], variants: [{ dop: 1, memoryMib: 1 }] };
  for (const [config, message] of [
    [of({ quota: "cpu" }), /openai.upstreams.0.quota: 'cpu' is no resource of type quota/],
    [
      of({ url: "http://api.example.com/v1" }),
      /openai.upstreams.0.url: sends requests to another machine in the clear/,
    ],
    [of({ url: "https://me:secret@api.example.com/v1" }), /has no query, user or password/],
    [of({ url: "ftp://api.example.com" }), /openai.upstreams.0.url/],
    [of({ models: {} }), /openai.upstreams.0.models: names one at least/],
    [of({ paths: ["/../x"] }), /openai.upstreams.0.paths.0: is a path such as/],
    [of({ paths: ["/v1/score", "/score"] }), /openai.upstreams.0.paths: are below \/v1/],
    [
      of({}, { resources: { api: { type: "quota", concurrency: 1 }, gpu: { ...gpu, services: { judge } } } }),
      /openai.upstreams.0.models: 'judge' is served already/,
    ],
  ] as const) {
    const issues = ActionServiceConfig.safeParse(config).error!.issues;
    expect(issues.map(({ path, message }) => `${path.join(".")}: ${message}`).join("\n")).toMatch(message);
  }
  await expect(serve(() => {}, { upstream: { units: 5 } })).rejects.toThrow(
    "openai.upstreams.0.units: '5' is more than the quota 'api' ever gives, which is 4; ask for less",
  );
  await expect(serve(() => {}, { upstream: { keyFile: "none.key" } })).rejects.toThrow(
    /openai.upstreams.0.keyFile: 'none.key' cannot be read/,
  );
});
