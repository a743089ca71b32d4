import { mkdtempSync, readdirSync, rmSync, statSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { createLogger, LogTail, openWorkerLog, parseLogLine, redactSecrets } from "../src/index.ts";

describe("redaction", () => {
  it.each([
    ['{"apiKey":"abc123","steps":3}', '{"apiKey":"[redacted]","steps":3}'],
    ['{"engine":{"auth_token": "xyz"}}', '{"engine":{"auth_token": "[redacted]"}}'],
    ['{"msg":"got {\\"password\\":\\"p w\\"} back"}', '{"msg":"got {\\"password\\":\\"[redacted]\\"} back"}'],
    ['{"password":"with \\"quotes\\" inside","a":1}', '{"password":"[redacted]","a":1}'],
    ["OPENAI_API_KEY=abcdef next", "OPENAI_API_KEY=[redacted] next"],
    ["connecting to nats://me:hunter2@host:4222", "connecting to nats://[redacted]@host:4222"],
    ["Authorization: Bearer abcdefghijkl.mno", "Authorization: Bearer [redacted]"],
    ["using sk-proj-abcdefghijklmnopqrst", "using [redacted]"],
  ])("of %s", (line, expected) => {
    expect(redactSecrets(line)).toBe(expected);
  });

  it.each([
    '{"tokens":512,"maxTokens":64}',
    "generated 12 tokens",
    '{"token":"the"}',
    "http://host:4222/path",
    "key=3",
  ])("leaves %s alone", (line) => {
    expect(redactSecrets(line)).toBe(line);
  });
});

describe("a logger", () => {
  it("writes lines with the worker's name, secrets removed at any depth, that parse back", () => {
    const lines: string[] = [];
    const logger = createLogger({ worker: "rollout/0", destination: { write: (line) => void lines.push(line) } });
    logger.warn({ engine: { deep: { apiKey: "abc" } } }, "engine is slow");
    logger.debug("not shown");
    expect(lines).toHaveLength(1);
    expect(JSON.parse(lines[0]!)).toMatchObject({ worker: "rollout/0", engine: { deep: { apiKey: "[redacted]" } } });
    expect(parseLogLine(lines[0]!)).toEqual({ level: "warn", message: "engine is slow" });
  });

  it("reads lines that others print as they are", () => {
    expect(parseLogLine("Segmentation fault", "error")).toEqual({ level: "error", message: "Segmentation fault" });
    expect(parseLogLine('{"level":"high"}')).toEqual({ level: "info", message: '{"level":"high"}' });
    expect(parseLogLine("{broken")).toEqual({ level: "info", message: "{broken" });
  });
});

describe("a log tail (S1)", () => {
  it("keeps the last lines, with an unfinished one and characters cut between chunks", () => {
    const tail = new LogTail({ lines: 3 });
    const bytes = Buffer.from("one\ntwo\nthrée\nfo");
    expect(tail.write(bytes.subarray(0, 11))).toEqual(["one", "two"]);
    expect(tail.write(bytes.subarray(11))).toEqual(["thrée"]);
    expect(tail.lines()).toEqual(["two", "thrée", "fo"]);
  });

  it("bounds a line that never ends and says how much is missing", () => {
    const tail = new LogTail({ maxLineLength: 10 });
    for (let i = 0; i < 100; i++) tail.write("x".repeat(50));
    expect(tail.write("\nnext\n")).toEqual([`${"x".repeat(10)}… (4990 more characters)`, "next"]);
  });

  it("shows a progress bar as the terminal would, Windows line ends too", () => {
    const tail = new LogTail();
    expect(tail.write("10 %\r50 %\r100 %\r\ndone\r\n")).toEqual(["100 %", "done"]);
  });

  it("lets no secret into a failure report", () => {
    const tail = new LogTail();
    tail.write("password=hunter2\n");
    expect(tail.lines()).toEqual(["password=[redacted]"]);
  });
});

it("keeps a worker's log files within their limit", async () => {
  const folder = mkdtempSync(join(tmpdir(), "treadle-logs-"));
  try {
    const log = openWorkerLog(folder, "rollout/0", { maxBytes: 2048, keep: 1 });
    for (let i = 0; i < 40; i++) {
      await new Promise<void>((resolve, reject) => {
        log.write(`${"y".repeat(199)}\n`, (error) => (error ? reject(error) : resolve()));
      });
    }
    await new Promise<void>((resolve) => log.end(() => resolve()));
    const files = readdirSync(folder).filter((name) => name.endsWith(".log"));
    expect(files.sort()).toEqual(["rollout-0.1.log", "rollout-0.log"]);
    for (const name of files) expect(statSync(join(folder, name)).size).toBeLessThanOrEqual(2048 + 200);
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
});
