import type { IncomingMessage } from "node:http";
import { ManualClock, settle } from "@treadle/contracts/testing";
import fc from "fast-check";
import { expect, test } from "vitest";
import { ActionPool, CpuManager, GpuManager, QuotaManager } from "../src/index.ts";
import { deadlineOf, isJsonType, modelIn, OpenAiError, servedModel, specFor } from "../src/openai/openai-request.ts";
import { isServedPath, missingRetryAfter, tellRefusal } from "../src/services/service-request.ts";

const bytes = (text: string): Buffer => Buffer.from(text);
const codeOf = (run: () => unknown): string => {
  try {
    run();
    return "none";
  } catch (error) {
    return error instanceof OpenAiError ? error.code : String(error);
  }
};

test("the model of any JSON object is found as JSON.parse finds it, wherever it is and however it is written", () => {
  const key = fc.oneof(fc.constantFrom("model", "messages", 'mo"del', "model "), fc.string());
  const value = fc.oneof(
    fc.string({ unit: "grapheme" }),
    fc.jsonValue({ maxDepth: 4 }),
    fc.record({ model: fc.string() }),
    fc.array(fc.record({ model: fc.string() }), { maxLength: 2 }),
  );
  const escaped = (text: string): string =>
    `"${[...Array(text.length).keys()].map((i) => `\\u${text.charCodeAt(i).toString(16).padStart(4, "0")}`).join("")}"`;
  let found = 0;
  fc.assert(
    fc.property(
      fc.array(fc.tuple(key, value, fc.boolean()), { maxLength: 6 }),
      fc.constantFrom("", " ", "\n\t"),
      (entries, space) => {
        const members = entries.map(([name, own, isEscaped]) => {
          const written = isEscaped ? escaped(name) : JSON.stringify(name);
          return `${space}${written}${space}:${space}${JSON.stringify(own, null, space)}`;
        });
        const text = `${space}{${members.join(",")}${space}}${space}`;
        const { model } = JSON.parse(text) as { model?: unknown };
        const isName = typeof model === "string" && model !== "" && model.length <= 200;
        if (isName) found++;
        if (isName) expect(modelIn(bytes(text))).toBe(model);
        else expect(codeOf(() => modelIn(bytes(text)))).toBe("model_missing");
      },
    ),
    { numRuns: 2000 },
  );
  expect(found).toBeGreaterThan(100);
});

test("what is no object of JSON is refused, and bytes that no JSON has raise nothing else", () => {
  for (const text of [
    "",
    "[]",
    "null",
    '"model"',
    "{",
    '{"model":"a"',
    '{"model":"a',
    '{"model":"a"}x',
    '{"model":"\u0001"}',
    "{}{}",
  ])
    expect([text, codeOf(() => modelIn(bytes(text)))]).toEqual([text, "invalid_json"]);
  fc.assert(
    fc.property(fc.array(fc.constantFrom(...'{}[]":,\\ model1'), { maxLength: 40 }), (parts) => {
      expect(["none", "invalid_json", "model_missing"]).toContain(
        codeOf(() => modelIn(bytes(`{"model":"a"${parts.join("")}`))),
      );
    }),
    { numRuns: 2000 },
  );
});

test("a body is JSON in UTF-8 by one header that says so, and nothing else", () => {
  for (const type of ["application/json", "Application/JSON; charset=UTF-8", 'application/json;charset="utf-8"'])
    expect([type, isJsonType([type])]).toEqual([type, true]);
  for (const type of [
    "",
    "application/json-seq",
    "application/json+x",
    "text/plain",
    "application/json; charset=utf-16",
    "application/json; charset=utf-7",
    "application/json; charset=utf-8; charset=utf-16",
    "application/json, text/plain",
    "x-application/json",
  ])
    expect([type, isJsonType([type])]).toEqual([type, false]);
  expect([isJsonType([]), isJsonType(["application/json", "application/json"])]).toEqual([false, false]);
});

test("only paths that no server reads otherwise are passed on", () => {
  const served = ["/v1/*", "/score"];
  for (const path of ["/v1/chat/completions", "/v1/embeddings", "/v1/score", "/score"])
    expect([path, isServedPath(path, served)]).toEqual([path, true]);
  for (const path of [
    "/v1",
    "/v1/",
    "/v1/../sleep",
    "/v1/..%2fsleep",
    "/v1//sleep",
    "/sleep",
    "/v1/a;b",
    "/v1/a\\b",
    "/v12/x",
    "/score/x",
    "/v1/.",
    "/v1/load_lora_adapter",
    "http://elsewhere/v1/x",
    "//elsewhere/v1/x",
    "/v1/x\n",
  ])
    expect([path, isServedPath(path, served)]).toEqual([path, false]);
});

test("a request is an action at all degrees of its service, and what is not served is named with what is", () => {
  const judge = { name: "judge", resource: "gpu", dops: [1, 2], serialShare: 0.1, paths: [] };
  const coach = { name: "coach", resource: "gpu", dops: [2], serialShare: 0.1, paths: [] };
  const about = { id: "x", tenant: "t" };
  expect(specFor(judge, about)).toMatchObject({ cost: { gpu: [1, 2] }, key: "gpu", kind: "judge", service: "judge" });
  expect(specFor(coach, about)).toMatchObject({ cost: { gpu: 2 }, key: "gpu" });
  expect(() => servedModel([judge, coach], "gpt")).toThrow("model 'gpt' is not served; served are 'judge', 'coach'");
  expect([deadlineOf(undefined, 10), deadlineOf("10", 10)]).toEqual([undefined, 10]);
  for (const header of ["0", "11", "-1", "1.5", "soon", "1e1"])
    expect(codeOf(() => deadlineOf(header, 10))).toBe("invalid_deadline");
});

test("the scheduler chooses a degree once it knows how long a request lasts: the largest where devices are free, the least in a crowd", async () => {
  const memory = { memoryBytesPerDevice: 10, nodes: 1, devicesPerNode: 4 } as const;
  const variants = [1, 2, 4].map((dop) => ({ dop, memoryBytes: 1, restoreSeconds: 0 }));
  const clock = new ManualClock();
  const pool = new ActionPool({ managers: [new GpuManager({ ...memory, services: { judge: variants } })], clock });
  const judge = { name: "judge", resource: "gpu", dops: [1, 2, 4], serialShare: 0.1, paths: [] };
  let made = 0;
  const ask = () =>
    pool.submit(specFor(judge, { id: String(made++), tenant: "t" }), async ({ allocation }) => {
      await clock.sleep(4000 / allocation["gpu"]!.units);
    });
  const degrees: (number | undefined)[] = [];
  for (let n = 0; n < 2; n++) {
    const one = ask();
    await settle();
    degrees.push(one.allocation?.["gpu"]?.units);
    await clock.advance(4000);
  }
  expect(degrees).toEqual([1, 4]);
  const crowd = Array.from({ length: 12 }, ask);
  await settle();
  expect(crowd.slice(0, 4).map(({ allocation }) => allocation?.["gpu"]?.units)).toEqual([1, 1, 1, 1]);
  await clock.advance(60_000);
  await pool.close();
});

test("UJ2 a wait of whole seconds is told as that, whenever its end was set", () => {
  const answer = { headers: {} } as IncomingMessage;
  fc.assert(
    fc.property(fc.double({ min: 0, max: 1e9, noNaN: true }), fc.integer({ min: 1, max: 60 }), (nowMs, seconds) => {
      expect(missingRetryAfter(answer, nowMs + 1000 * seconds - nowMs)).toBe(String(seconds));
    }),
  );
  expect([0, 0.2, 1, 1001].map((waitMs) => missingRetryAfter(answer, waitMs))).toEqual(["1", "1", "1", "2"]);
});

test("UJ2 a refusal says when to ask again: what the service said, what its quota makes of it, else in a second", async () => {
  const api = new QuotaManager("api", { concurrency: 4 });
  const cpu = new CpuManager({ nodes: [{ id: "local", numa: [[0]], memoryBytes: 2 ** 30 }] });
  const pool = new ActionPool({ managers: [api, cpu], clock: new ManualClock() });
  const told = (resource: string, ...refusal: [number, string | undefined]) =>
    pool.submit({ kind: "call", cost: { [resource]: 1 } }, async (context) => tellRefusal(context, ...refusal)).result;
  expect(await told("cpu", 503, undefined)).toBe(1000);
  expect(await told("cpu", 429, "7")).toBe(7000);
  expect(await told("cpu", 500, "7")).toBeUndefined();
  expect(await told("api", 429, "7")).toBe(7000);
  const other = new ActionPool({ managers: [new QuotaManager("api", { concurrency: 4 })], clock: new ManualClock() });
  const ask = { kind: "call", cost: { api: 1 } };
  expect(await other.submit(ask, async (context) => tellRefusal(context, 429, undefined)).result).toBe(1000);
});
