import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdirSync, readdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { type Link, type Peer, runPrefix } from "@treadle/contracts";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { createPeer, type Endpoint, openEndpoint, removeSegments } from "../src/index.ts";
import { sharedMemory } from "../src/memory/shared-memory.ts";
import { folder, token } from "./support/endpoints.ts";
import { farWords } from "./support/far-words.ts";

const runId = `transport-processes-${process.pid}`;
const prefix = runPrefix(runId);
const segmentFiles = () => readdirSync("/dev/shm").filter((name) => name.startsWith(prefix));
const bulk = 8 * 1024 * 1024; // floats: 32 MiB, viewed in place
const medium = 512 * 1024; // floats: 2 MiB, copied out

function allOnes(data: Float32Array): boolean {
  for (let index = 0; index < data.length; index++) if (data[index] !== 1) return false;
  return true;
}

describe.skipIf(sharedMemory() === undefined)("two processes on one host", () => {
  let where: Awaited<ReturnType<typeof folder>>;
  let near: Endpoint;
  let far: ChildProcess;
  let peer: Peer<typeof farWords>;

  beforeEach(async () => {
    where = await folder();
    near = await openEndpoint({ name: "near", runId, token, unixPath: join(where.path, "s") });
    const accepted = new Promise<Link>((resolve) => near.onLink(resolve));
    const script = fileURLToPath(new URL("support/far-process.ts", import.meta.url));
    const args = ["--import", "tsx", "--conditions=source", script, near.addresses[0]!, runId, token];
    far = spawn(process.execPath, args, { stdio: ["ignore", "inherit", "inherit"] });
    peer = createPeer(await accepted, farWords);
  });
  afterEach(async () => {
    far.kill("SIGKILL");
    if (far.exitCode === null && far.signalCode === null) await once(far, "exit");
    await near.close();
    expect(segmentFiles().filter((name) => name.startsWith(`${prefix}${process.pid}-`))).toEqual([]); // SP3
    removeSegments(prefix);
    await where.dispose();
  });

  it("pass large arrays both ways through shared memory", async () => {
    const data = new Float32Array(bulk).fill(0.5);
    expect(await peer.request("sum", data)).toBe(bulk / 2);
    expect(segmentFiles().length).toBeGreaterThan(0);
    const made = (await peer.request("make", bulk)) as Float32Array;
    expect(made.length).toBe(bulk);
    expect(allOnes(made)).toBe(true);
    const echoed = (await peer.request("echo", {
      list: [made.subarray(0, medium), "x"],
    })) as { list: [Float32Array, string] };
    expect(echoed.list[0].length).toBe(medium);
    expect(allOnes(echoed.list[0])).toBe(true);
    expect(echoed.list[1]).toBe("x");
  });

  it("never write over arrays that are still reachable (SX1, SX2)", async () => {
    const rounds = [1, 2, 3, 4];
    for (const round of rounds) await peer.request("keep", new Float32Array(bulk).fill(round));
    for (const round of rounds) await peer.request("keep", new Float32Array(medium).fill(round));
    expect(await peer.request("sums of kept", 0)).toEqual([
      ...rounds.map((round) => round * bulk),
      ...rounds.map((round) => round * medium),
    ]);
  });

  it("reuse the memory of released arrays, which are empty from then on (RA1)", async () => {
    for (let round = 1; round <= 5; round++) {
      const data = new Float32Array(bulk).fill(round);
      expect(await peer.request("sum and release", data)).toEqual([round * bulk, 0]);
      expect(await peer.request("sum and release", data.subarray(0, medium))).toEqual([round * medium, 0]);
    }
    expect(segmentFiles().filter((name) => name.includes(`-${process.pid}-`)).length).toBeLessThanOrEqual(3);
  });

  it("leave a message that was cut off undelivered, and report the death (SK4)", async () => {
    const messages: unknown[] = [];
    peer.link.onMessage((message) => messages.push(message));
    const cause = new Promise((resolve) => peer.link.onClose(resolve));
    peer.link.send([0, 1, "die while sending", 64 * 1024 * 1024]);
    expect(await cause).toMatchObject({ code: "link.closed", disposition: "retryable" });
    for (const message of messages) expect((message as Float32Array).length).toBe(64 * 1024 * 1024);
  });

  it("reject what is pending when the other dies, and take the memory back", async () => {
    const hanging = peer.request("hang", new Float32Array(bulk));
    const failure = expect(hanging).rejects.toMatchObject({ code: "link.closed" });
    await peer.request("keep", new Float32Array(bulk));
    far.kill("SIGKILL");
    await failure;
    expect(segmentFiles().filter((name) => name.includes(`-${process.pid}-`))).toEqual([]);
  });

  it("keep received arrays valid after their sender died and its files were removed (SX3)", async () => {
    const made = (await peer.request("make", bulk)) as Float32Array;
    const gone = new Promise((resolve) => peer.link.onClose(resolve));
    far.kill("SIGKILL");
    await gone;
    expect(removeSegments(prefix)).toBeGreaterThan(0);
    expect(allOnes(made)).toBe(true);
  });
});

describe("removing segments", () => {
  it("removes what starts with the prefix, folders included, and nothing else", () => {
    const own = `treadle-removal-${process.pid}-`;
    writeFileSync(`/dev/shm/${own}1-1`, "");
    mkdirSync(`/dev/shm/${own}2-weights`);
    writeFileSync(`/dev/shm/${own}2-weights/some`, "");
    writeFileSync(`/dev/shm/other-${own}`, "");
    expect(removeSegments(own)).toBe(2);
    expect(removeSegments(own)).toBe(0);
    expect(removeSegments(`other-${own}`)).toBe(1);
  });

  it.each(["", "short", "treadle-/../x"])("refuses the prefix %j", (bad) => {
    expect(() => removeSegments(bad)).toThrow(expect.objectContaining({ code: "config.invalid" }));
  });
});
