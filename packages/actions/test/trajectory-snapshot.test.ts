import { readdirSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import * as grpc from "@grpc/grpc-js";
import { afterEach, describe, expect, test } from "vitest";
import type { ActionServerOptions } from "../src/serve.ts";
import { connectActions, outputOf } from "./support/client.ts";
import { serveProcesses } from "./support/process-service.ts";
import { eventually } from "./support/processes.ts";

const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup();
});

async function serve(options: Partial<ActionServerOptions> = {}) {
  const before = new Set(readdirSync(tmpdir()));
  const { server, address, close } = await serveProcesses(options);
  cleanups.push(close);
  const connect = (token?: string) => {
    const client = connectActions(address, undefined, token);
    cleanups.push(client.close);
    const say = async (trajectory: string, text: string, session?: string) => {
      const command = session === undefined ? ["sh", "-c", text] : [text];
      const run = client.submit({ trajectory, command, session });
      const error = await run.ended;
      if (error !== undefined) throw error;
      return outputOf(run);
    };
    return { ...client, say };
  };
  /** Archives of the driver, which other tests' drivers do not have: their folders are older, or theirs alone. */
  const numKept = (): number =>
    readdirSync(tmpdir())
      .filter((name) => name.startsWith("treadle-process-") && !before.has(name))
      .flatMap((name) => {
        try {
          return readdirSync(join(tmpdir(), name));
        } catch {
          return []; // another's, which has ended
        }
      })
      .filter((name) => name.includes(".snapshot-")).length;
  return { ...connect(), connect, server, numKept };
}

describe("snapshots over gRPC", () => {
  test("SN2 a trajectory is forked with its files, sessions, variables and folder, and goes its own way", async () => {
    const { call, say } = await serve();
    await call("OpenTrajectory", { trajectory: "trunk", environment: { FROM: "trunk", SAME: "yes" } });
    await call("OpenSession", { trajectory: "trunk", session: "main" });
    await say("trunk", "mkdir -p deep; echo data > deep/file; cd deep; export NAME=value", "main");
    const taken = await call("TakeSnapshot", { trajectory: "trunk", snapshot: "s", idempotency_key: "k" });
    expect(taken).toMatchObject({ snapshot: "s", size_bytes: expect.any(Number) });
    expect(await call("TakeSnapshot", { trajectory: "trunk", snapshot: "s", idempotency_key: "k" })).toEqual(taken);
    await say("trunk", "echo later > file; NAME=later", "main");
    for (const branch of ["left", "right"]) {
      await call("OpenTrajectory", { trajectory: branch, snapshot: "s", environment: { FROM: branch } });
      expect(await say(branch, 'echo "$NAME $SAME"; cat file; echo $FROM > mine; ls', "main")).toBe(
        "value yes\ndata\nfile\nmine\n",
      );
      expect(await say(branch, "echo $FROM $SAME")).toBe(`${branch} yes\n`);
      await say(branch, `NAME=${branch}; echo ${branch} > file`, "main");
    }
    expect(await say("left", "echo $NAME; cat file", "main")).toBe("left\nleft\n");
    expect(await say("trunk", "echo $NAME; cat file; ls", "main")).toBe("later\nlater\nfile\n");
  });

  test("SN2 a snapshot's room is given back once it was dropped and nothing that began from it is open", async () => {
    const { call, say, numKept } = await serve();
    await call("OpenTrajectory", { trajectory: "t" });
    await say("t", "echo x > x");
    const { snapshot } = await call("TakeSnapshot", { trajectory: "t" });
    await call("OpenTrajectory", { trajectory: "fork", snapshot, restorable: true });
    await call("DropSnapshot", { snapshot });
    await expect(call("OpenTrajectory", { trajectory: "late", snapshot })).rejects.toMatchObject({
      code: grpc.status.NOT_FOUND,
      details: expect.stringMatching(/was dropped, never taken, or not used for too long; take another/),
    });
    expect(numKept()).toBeGreaterThan(0);
    // It may need it again: its sandbox dies.
    await say("fork", 'rm -rf "$PWD"; kill -9 $$').catch(() => {});
    const again = await say("fork", "cat x").catch(() => say("fork", "cat x"));
    expect(again).toBe("x\n");
    const kept = numKept();
    await call("CloseTrajectory", { trajectory: "fork" });
    expect(numKept()).toBe(kept - 1);
  });

  test("SN1 SN3 what cannot be taken is refused, with what was allowed", async () => {
    const { call, say, submit } = await serve({ limits: { snapshots: 2, snapshotBytes: 400_000 } });
    await call("OpenTrajectory", { trajectory: "t" });
    const failure = (message: object) =>
      call("TakeSnapshot", { trajectory: "t", ...message }).then(
        () => undefined,
        (error: grpc.ServiceError) => [error.code, error.details],
      );
    const running = submit({ trajectory: "t", command: ["sh", "-c", "echo up; until [ -e go ]; do sleep 0.02; done"] });
    await running.until("output");
    expect(await failure({})).toEqual([grpc.status.INVALID_ARGUMENT, expect.stringMatching(/of files at rest/)]);
    await call("WriteFile", { trajectory: "t", path: "go", data: Buffer.alloc(0) });
    await running.ended;
    await say("t", "head -c 250000 /dev/zero > big");
    await call("TakeSnapshot", { trajectory: "t", snapshot: "a" });
    expect(await failure({ snapshot: "a" })).toEqual([
      grpc.status.ALREADY_EXISTS,
      expect.stringMatching(/snapshot 'a' is there already; choose another name, or drop it/),
    ]);
    expect(await failure({ snapshot: "b" })).toEqual([
      grpc.status.INVALID_ARGUMENT,
      expect.stringMatching(
        /more than the \d+ bytes that a snapshot may still have; .*drop snapshots, or raise limits\.snapshotMib/,
      ),
    ]);
    await say("t", "rm big");
    await call("TakeSnapshot", { trajectory: "t", snapshot: "b" });
    expect(await failure({ snapshot: "c" })).toEqual([
      grpc.status.RESOURCE_EXHAUSTED,
      expect.stringMatching(/has 2 snapshots already, which is its limit; drop some, or raise limits\.snapshots/),
    ]);
    await expect(call("OpenTrajectory", { snapshot: "a", image: "python:3" })).rejects.toMatchObject({
      details: expect.stringMatching(/image 'python:3' was asked for with a snapshot, which brings its own/),
    });
    await expect(call("TakeSnapshot", { trajectory: "none" })).rejects.toMatchObject({ code: grpc.status.NOT_FOUND });
  });

  test("SN4 one that nobody uses is dropped; one from which a trajectory is open is not", async () => {
    const { call, say, numKept } = await serve({ limits: { idleMs: 4000 } });
    await call("OpenTrajectory", { trajectory: "t" });
    await say("t", "echo x > x");
    await call("TakeSnapshot", { trajectory: "t", snapshot: "left" });
    await call("TakeSnapshot", { trajectory: "t", snapshot: "used" });
    await call("OpenTrajectory", { trajectory: "fork", snapshot: "used" });
    const running = say("fork", "until [ -e go ]; do sleep 0.02; done; cat x");
    expect(await eventually(() => numKept() === 1)).toBe(true);
    await call("OpenTrajectory", { trajectory: "other", snapshot: "used" });
    await call("WriteFile", { trajectory: "fork", path: "go", data: Buffer.alloc(0) });
    expect(await running).toBe("x\n");
    expect(await eventually(() => numKept() === 0)).toBe(true);
  });

  test("GS1 GS3 snapshots are a tenant's own, and none is left when the server has closed", async () => {
    const tokens = new Map(["a", "b"].map((tenant) => [`t-${tenant}`, tenant]));
    const { connect, server, numKept } = await serve({ tokens });
    const [a, b] = [connect("t-a"), connect("t-b")];
    await a.call("OpenTrajectory", { trajectory: "t" });
    await a.call("TakeSnapshot", { trajectory: "t", snapshot: "s" });
    await expect(b.call("OpenTrajectory", { snapshot: "s" })).rejects.toMatchObject({ code: grpc.status.NOT_FOUND });
    await expect(b.call("DropSnapshot", { snapshot: "s" })).rejects.toMatchObject({ code: grpc.status.NOT_FOUND });
    await expect(b.call("TakeSnapshot", { trajectory: "t" })).rejects.toMatchObject({ code: grpc.status.NOT_FOUND });
    await server.close();
    expect(numKept()).toBe(0);
  });
});
