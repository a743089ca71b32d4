import { execFileSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readdirSync, readlinkSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import * as grpc from "@grpc/grpc-js";
import { afterEach, describe, expect, test } from "vitest";
import type { ActionServerOptions } from "../src/serve.ts";
import { connectActions, outputOf } from "./support/client.ts";
import { serveProcesses } from "./support/process-service.ts";
import { eventually } from "./support/processes.ts";
import { folder, rawArchive, rawEntry } from "./support/tar.ts";

const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup();
});

async function serve(options: Partial<ActionServerOptions> = {}) {
  const { address, close } = await serveProcesses(options);
  const client = connectActions(address);
  cleanups.push(close, client.close);
  await client.call("OpenTrajectory", { trajectory: "t" });
  const say = async (text: string): Promise<string> => {
    const run = client.submit({ trajectory: "t", command: ["sh", "-c", text] });
    const error = await run.ended;
    if (error !== undefined) throw error;
    return outputOf(run);
  };
  return { ...client, say };
}
const temporary = (): string => {
  const place = mkdtempSync(join(tmpdir(), "treadle-transfers-"));
  cleanups.push(() => rmSync(place, { recursive: true, force: true }));
  return place;
};
const to = (path: string) => ({ trajectory: "t", path });
const status = (code: grpc.status, details: RegExp) =>
  expect.objectContaining({ code, details: expect.stringMatching(details) });
const text = rawArchive(folder, { name: "a", content: "text" });

/** What the machine gave this process for its heap and its buffers. */
const memoryBytes = (): number => process.memoryUsage().rss;

describe("a folder goes into a sandbox and comes back", () => {
  test("as it was, many pieces long", async () => {
    const { upload, downloaded, say } = await serve();
    const place = temporary();
    mkdirSync(join(place, "in/deep"), { recursive: true });
    writeFileSync(join(place, "in/deep/big"), Buffer.alloc(3_000_000, "treadle "));
    writeFileSync(join(place, "in/run.sh"), "echo ran", { mode: 0o755 });
    execFileSync("ln", ["-s", "../run.sh", join(place, "in/deep/link")]);
    const archive = execFileSync("tar", ["-C", join(place, "in"), "-c", "."], { maxBuffer: 2 ** 26 });
    const pieces = [archive.subarray(0, 100), archive.subarray(100, 1_000_000), archive.subarray(1_000_000, 2_000_000)];
    await upload(to("there/it is"), [...pieces, archive.subarray(2_000_000)]).reply;
    expect(await say("./'there/it is/deep/link'; ls -A . there")).toBe("ran\n.:\nthere\n\nthere:\nit is\n");
    mkdirSync(join(place, "out"));
    execFileSync("tar", ["-C", join(place, "out"), "-x"], { input: await downloaded(to("there/it is")) });
    execFileSync("diff", ["-r", "--no-dereference", join(place, "in"), join(place, "out")]);
    const one = execFileSync("tar", ["-t"], { input: await downloaded(to("there/it is/run.sh")) });
    expect(one.toString()).toBe("./file\n");
  });

  test("into one that is there: what it has joins, and links of its names are replaced, not followed", async () => {
    const { upload, say } = await serve();
    await say(
      "mkdir -p f/sub aside; echo kept > f/kept; echo own > own; ln -s ../own f/a; ln -s ../aside f/l; chmod 711 f",
    );
    const archive = rawArchive(
      { ...folder, mode: 0o700 },
      { name: "a", content: "new\n" },
      { name: "sub/b", content: "deep\n" },
      { name: "l/c", content: "c\n" },
    );
    await upload(to("f"), [archive]).reply;
    expect(await say("cat f/kept f/a f/sub/b f/l/c own; ls aside; stat -c %a f; ls -A f")).toBe(
      "kept\nnew\ndeep\nc\nown\n711\na\nkept\nl\nsub\n",
    );
    await upload(to("."), [rawArchive(folder)]).reply;
    await upload(to("f/a"), [rawArchive({ name: "x", content: "alone\n" })]).reply;
    expect(await say("cat f/a own")).toBe("alone\nown\n");
  });

  test("TF1 nothing is written of an archive that is refused, cut off or cannot be placed", async () => {
    const { upload, say } = await serve();
    await say("mkdir folder; echo > file");
    const late = [rawArchive(folder, { name: "a", content: "x".repeat(100_000) }).subarray(0, -1024)];
    for (const [path, pieces, error] of [
      [
        "f",
        [...late, rawEntry({ name: "../b" })],
        status(grpc.status.INVALID_ARGUMENT, /archive is refused: ".*b" leads out/),
      ],
      [
        "f",
        [...late, rawEntry({ name: "b", size: "00000000100" }).subarray(0, 540)],
        status(grpc.status.INVALID_ARGUMENT, /cut off/),
      ],
      ["f", [], status(grpc.status.INVALID_ARGUMENT, /it is empty/)],
      [
        "file",
        [text],
        status(grpc.status.UNAVAILABLE, /'.*file' could not be unpacked: it is no folder; remove it first/),
      ],
      ["folder", [rawArchive({ name: "a" })], status(grpc.status.UNAVAILABLE, /it is a folder; name the file in it/)],
      ["file/f", [text], status(grpc.status.UNAVAILABLE, /could not be unpacked/)],
      ["../f", [text], status(grpc.status.UNAVAILABLE, /leaves the sandbox's folder/)],
    ] as const)
      await expect(upload(to(path), pieces).reply, path).rejects.toEqual(error);
    expect(await say("find . ! -name . | sort")).toBe("./file\n./folder\n");
  });

  test("TF1 nothing is sent of files that are refused, and why is said", async () => {
    const { downloaded, say } = await serve();
    await say("mkdir f g; head -c 200000 /dev/zero > f/a; ln -s /etc/passwd f/z; mkfifo g/p");
    await expect(downloaded(to("f"))).rejects.toEqual(
      status(grpc.status.INVALID_ARGUMENT, /the link ".\/z" leads to "\/etc\/passwd"/),
    );
    await expect(downloaded(to("g"))).rejects.toEqual(status(grpc.status.INVALID_ARGUMENT, /".\/p" is a pipe/));
    await expect(downloaded(to("h"))).rejects.toEqual(
      status(grpc.status.UNAVAILABLE, /'.*h' could not be packed: .*No such file/),
    );
  });
});

test("TF2 a client that does not read keeps the service from sending, and takes no memory of it", async () => {
  const { download, say } = await serve({ stallMs: 60_000 });
  await say("head -c 60000000 /dev/zero > big");
  const before = memoryBytes();
  const stream = download(to("big"));
  let bytes = 0;
  await new Promise((resolve) => stream.once("readable", resolve));
  for (let n = 0; n < 20; n++) {
    await new Promise((resolve) => setTimeout(resolve, 25));
    expect(memoryBytes() - before).toBeLessThan(45_000_000);
  }
  for await (const { data } of stream) bytes += data.length;
  expect(bytes).toBeGreaterThan(60_000_000);
}, 60_000);

/** They have no names any more. */
const numSpools = (): number =>
  readdirSync("/proc/self/fd").filter((descriptor) => {
    try {
      return readlinkSync(`/proc/self/fd/${descriptor}`).includes("treadle-output-");
    } catch {
      return false;
    }
  }).length;

/** Sends the first half, and the rest when it is told to. */
function halting(archive: Buffer): { pieces: AsyncIterable<Buffer>; goOn: () => void } {
  const half = archive.length / 2;
  let goOn = (): void => {};
  const told = new Promise<void>((resolve) => {
    goOn = resolve;
  });
  const pieces = async function* () {
    yield archive.subarray(0, half);
    await told;
    yield archive.subarray(half);
  };
  return { pieces: pieces(), goOn };
}

test("TF3 what is on its way stays within its tenant's limit, and goes on when there is room", async () => {
  const { upload, say } = await serve({ limits: { transferBytes: 300_000 } });
  const archive = rawArchive(folder, { name: "a", content: "x".repeat(200_000) });
  const too = rawArchive(folder, { name: "a", content: "x".repeat(400_000) });
  await expect(upload(to("f"), [too]).reply).rejects.toEqual(
    status(grpc.status.INVALID_ARGUMENT, /more than 300000 bytes; move less, or raise limits.transferMib/),
  );
  const { pieces, goOn } = halting(archive);
  const first = upload(to("first"), pieces);
  expect(await eventually(() => numSpools() === 1)).toBe(true);
  const full = status(
    grpc.status.RESOURCE_EXHAUSTED,
    /archives that tenant 'default' moves take '\d+' bytes, of 300000 that they may; move less at once/,
  );
  // Until the half of the first has come.
  const refusedAt = async (): Promise<unknown> => {
    for (;;) {
      const error = await upload(to("second"), [archive]).reply.catch((why: unknown) => why);
      if (error instanceof Error) return error;
    }
  };
  expect(await refusedAt()).toEqual(full);
  goOn();
  await first.reply;
  await upload(to("third"), [archive]).reply;
  expect(await say("wc -c < first/a; wc -c < third/a")).toBe("200000\n200000\n");
});

test("TF2 TF3 eight are on their way at once, and one more waits for a turn, unread", async () => {
  const { upload } = await serve();
  const halted = Array.from({ length: 8 }, () => halting(text));
  const held = halted.map(({ pieces }, n) => upload(to(`f${n}`), pieces));
  const ends = Promise.allSettled(held.map(({ reply }) => reply));
  expect(await eventually(() => numSpools() === 8)).toBe(true);
  const big = Buffer.concat([rawEntry(folder), rawEntry({ name: "a", content: "x".repeat(60_000_000) })]);
  let numPulled = 0;
  const counted = function* () {
    for (let at = 0; at < big.length; at += 100_000) {
      numPulled++;
      yield big.subarray(at, at + 100_000);
    }
  };
  const gone = upload(to("gone"), counted());
  const next = upload(to("next"), [text]);
  await new Promise((resolve) => setTimeout(resolve, 150));
  expect(numSpools()).toBe(8);
  // Windows of flow control, and buffers; not all six hundred.
  expect(numPulled).toBeLessThan(150);
  gone.stream.cancel();
  await expect(gone.reply).rejects.toMatchObject({ code: grpc.status.CANCELLED });
  held[3]!.stream.cancel();
  await next.reply;
  for (const { goOn } of halted) goOn();
  expect((await ends).map((end) => end.status).join()).toBe(
    held.map((_, n) => (n === 3 ? "rejected" : "fulfilled")).join(),
  );
  expect(numSpools()).toBe(0);
});

test("TF4 a client that stalls, or is gone, ends its transfer and leaves nothing", async () => {
  const { upload, download, say } = await serve({ stallMs: 300 });
  const { pieces, goOn } = halting(text);
  await expect(upload(to("f"), pieces).reply).rejects.toEqual(
    status(grpc.status.DEADLINE_EXCEEDED, /the client has neither sent nor read for 0.3 s; begin again/),
  );
  goOn();
  await say("head -c 60000000 /dev/zero > big");
  const stream = download(to("big"));
  await new Promise((resolve) => stream.once("readable", resolve));
  expect(await eventually(() => numSpools() === 0)).toBe(true);
  const readOn = async (): Promise<void> => {
    for await (const _ of stream);
  };
  await expect(readOn()).rejects.toEqual(status(grpc.status.DEADLINE_EXCEEDED, /has neither sent nor read/));
  const left = download(to("big"));
  left.on("error", () => {});
  await new Promise((resolve) => left.once("readable", resolve));
  left.cancel();
  expect(await eventually(() => numSpools() === 0)).toBe(true);
  expect(await say("ls -A")).toBe("big\n");
});
