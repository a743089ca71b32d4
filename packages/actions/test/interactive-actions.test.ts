import * as grpc from "@grpc/grpc-js";
import fc from "fast-check";
import { afterEach, describe, expect, test } from "vitest";
import { ActionInput } from "../src/grpc/action-input.ts";
import type { ActionServerOptions } from "../src/serve.ts";
import { connectActions, outputOf } from "./support/client.ts";
import { serveProcesses } from "./support/process-service.ts";
import { eventually, processesWith } from "./support/processes.ts";

const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup();
});

async function serve(options: Partial<ActionServerOptions> = {}) {
  const { address, close } = await serveProcesses(options);
  cleanups.push(close);
  const connect = (token?: string) => {
    const client = connectActions(address, undefined, token);
    cleanups.push(client.close);
    return client;
  };
  return { ...connect(), connect };
}

type Run = ReturnType<ReturnType<typeof connectActions>["submit"]>;
const exitOf = ({ events }: Run) => events.at(-1)!.finished?.exit_code;

describe("sessions over gRPC", () => {
  test("keep their state from command to command, apart from each other, and tell each command's own end", async () => {
    const { call, submit } = await serve();
    const { trajectory } = await call("OpenTrajectory", {});
    for (const session of ["a", "b"]) await call("OpenSession", { trajectory, session, idempotency_key: session });
    await call("OpenSession", { trajectory, session: "a", idempotency_key: "a" });
    const tell = async (session: string, text: string) => {
      const run = submit({ trajectory, session, command: [text] });
      expect(await run.ended).toBeUndefined();
      return [outputOf(run), exitOf(run)];
    };
    expect(await tell("a", "mkdir -p deep; cd deep; export NAME=a; (exit 3)")).toEqual(["", 3]);
    expect(await tell("b", "ls; NAME=b")).toEqual(["deep\n", 0]);
    expect(await tell("a", 'basename "$PWD"; echo $NAME; echo exited 0; exit 5')).toEqual(["deep\na\nexited 0\n", 5]);
    expect(await tell("b", "echo $NAME on $TREADLE_UNITS_CPU")).toEqual(["b on 1\n", 0]);
    await call("CloseSession", { trajectory, session: "a" });
    expect(await submit({ trajectory, session: "a", command: ["true"] }).ended).toMatchObject({
      code: grpc.status.INVALID_ARGUMENT,
      details: expect.stringMatching(/session 'a' is not open; open it first; open are 'b'/),
    });
  });

  test("a request that a session cannot take names the field and what was allowed", async () => {
    const { call, submit } = await serve();
    const { trajectory } = await call("OpenTrajectory", {});
    await call("OpenSession", { trajectory, session: "a", idempotency_key: "first" });
    const failure = async (message: object) => (await submit({ trajectory, session: "a", ...message }).ended)?.details;
    expect(await failure({ command: ["echo", "a"] })).toMatch(/command: has 2 words; in a session it is one/);
    expect(await failure({ command: ["env"], environment: { A: "b" } })).toMatch(/environment: a session has its own/);
    await expect(call("OpenSession", { trajectory, session: "a", idempotency_key: "other" })).rejects.toMatchObject({
      details: expect.stringMatching(/session 'a' is open already/),
    });
    await expect(call("OpenSession", { trajectory: "none", session: "a" })).rejects.toMatchObject({
      code: grpc.status.NOT_FOUND,
    });
  });
});

describe("an action that is talked to", () => {
  test("AI1 gets what is sent while it runs, each byte once, and its end", async () => {
    const { call, submit } = await serve();
    const { trajectory } = await call("OpenTrajectory", {});
    const command = ["sh", "-c", 'while read -r line; do echo "got $line"; done; echo over'];
    const run = submit({ trajectory, command, action: "talk", input: true, stdin: Buffer.from("first\n") });
    await run.until("output");
    const send = (text: string, offset: number, end = false) =>
      call("SendInput", { action: "talk", data: Buffer.from(text), offset, end });
    await send("second\n", 0);
    await send("second\nthird\n", 0);
    await expect(send("fifth\n", 99)).rejects.toMatchObject({
      code: grpc.status.OUT_OF_RANGE,
      details: expect.stringMatching(/offset: '99' is beyond the 13 bytes that have arrived/),
    });
    expect(await eventually(() => outputOf(run).includes("third"))).toBe(true);
    await send("", 13, true);
    expect(await run.ended).toBeUndefined();
    expect(outputOf(run)).toBe("got first\ngot second\ngot third\nover\n");
    await expect(send("late", 13)).rejects.toMatchObject({ code: grpc.status.NOT_FOUND });
  });

  test("AI2 what it does not read is bounded, and told to whoever sends it", async () => {
    const { call, submit } = await serve();
    const { trajectory } = await call("OpenTrajectory", {});
    const run = submit({ trajectory, command: ["sleep", "78.25"], action: "deaf", input: true });
    await run.until("started");
    const data = Buffer.alloc(2 ** 20);
    const flood = async () => {
      for (let offset = 0; ; offset += data.length) await call("SendInput", { action: "deaf", data, offset });
    };
    await expect(flood()).rejects.toMatchObject({
      code: grpc.status.RESOURCE_EXHAUSTED,
      details: expect.stringMatching(/'deaf' has not read what was sent before/),
    });
    await expect(call("SendInput", { action: "deaf", data: Buffer.alloc(2 ** 20 + 1) })).rejects.toMatchObject({
      details: expect.stringMatching(/data: has 1048577 bytes, at most 1048576 are allowed; send it in pieces/),
    });
    run.stream.cancel();
    const plain = submit({ trajectory, command: ["sleep", "78.25"], action: "plain" });
    await plain.until("started");
    await expect(call("SendInput", { action: "plain" })).rejects.toMatchObject({
      code: grpc.status.FAILED_PRECONDITION,
      details: expect.stringMatching(/submit it with input: true/),
    });
    const retried = submit({ trajectory, command: ["cat"], input: true, retries: 1 });
    expect((await retried.ended)?.details).toMatch(/retries: is 0 with `input`/);
  });

  test("gets signals, all of its processes, and says how it ended; in a session SIGINT ends the command alone", async () => {
    const { call, submit } = await serve();
    const { trajectory } = await call("OpenTrajectory", {});
    const server = submit({
      trajectory,
      action: "server",
      command: [
        "bash",
        "-c",
        "trap 'echo reload' HUP; trap 'echo bye; exit 4' TERM; echo up; while :; do sleep 0.02; done",
      ],
    });
    await server.until("output");
    expect(await call("Signal", { action: "server", signal: "HUP" })).toEqual({ found: true });
    expect(await eventually(() => outputOf(server).includes("reload"))).toBe(true);
    expect(await call("Signal", { action: "server", signal: "TERM" })).toEqual({ found: true });
    expect(await server.ended).toBeUndefined();
    expect([outputOf(server), exitOf(server)]).toEqual(["up\nreload\nbye\n", 4]);
    expect(await call("Signal", { action: "server", signal: "TERM" })).toEqual({ found: false });
    await call("OpenSession", { trajectory, session: "main" });
    const looping = submit({
      trajectory,
      session: "main",
      action: "loop",
      command: ["X=1; echo up; sleep 77.25; X=2"],
    });
    await looping.until("output");
    await call("Signal", { action: "loop", signal: "INT" });
    expect(await looping.ended).toBeUndefined();
    expect(exitOf(looping)).toBe(130);
    expect(await eventually(() => processesWith("77.25").length === 0)).toBe(true);
    const after = submit({ trajectory, session: "main", command: ["echo $X"] });
    expect(await after.ended).toBeUndefined();
    expect(outputOf(after)).toBe("1\n");
    await expect(call("Signal", { action: "x", signal: "SIGTERM" })).rejects.toMatchObject({
      code: grpc.status.INVALID_ARGUMENT,
      details: expect.stringMatching(/signal: 'SIGTERM' is not sent; sent are INT, TERM, KILL/),
    });
  });

  test("GS1 another tenant neither sends to it nor signals it, nor sees sessions", async () => {
    const tokens = new Map(["a", "b"].map((tenant) => [`t-${tenant}`, tenant]));
    const { connect } = await serve({ tokens });
    const [a, b] = [connect("t-a"), connect("t-b")];
    await a.call("OpenTrajectory", { trajectory: "t" });
    await a.call("OpenSession", { trajectory: "t", session: "s" });
    const run = a.submit({ trajectory: "t", command: ["cat"], action: "x", input: true });
    await run.until("started");
    expect(await b.call("Signal", { action: "x", signal: "KILL" })).toEqual({ found: false });
    await expect(b.call("SendInput", { action: "x", end: true })).rejects.toMatchObject({
      code: grpc.status.NOT_FOUND,
    });
    await expect(b.call("CloseSession", { trajectory: "t", session: "s" })).rejects.toMatchObject({
      code: grpc.status.NOT_FOUND,
    });
    await a.call("SendInput", { action: "x", data: Buffer.from("mine"), end: true });
    expect(await run.ended).toBeUndefined();
    expect(outputOf(run)).toBe("mine");
  });
});

test("AI1 AI2 whatever is lost and repeated, the command reads the bytes that were sent, and never more than fits", () => {
  const limit = 16;
  const call = fc.record({ bytes: fc.nat(12), back: fc.nat(6), reads: fc.nat(20) });
  fc.assert(
    fc.property(fc.array(call, { maxLength: 30 }), (calls) => {
      const whole = Buffer.from(Array.from({ length: 512 }, (_, at) => at % 251));
      const input = new ActionInput(limit, new Uint8Array());
      let sent = 0;
      const got: Buffer[] = [];
      const take = (): void => {
        const piece = input.stream.read() as Buffer | null;
        if (piece !== null) got.push(piece);
      };
      for (const { bytes, back, reads } of calls) {
        const from = Math.max(0, sent - back);
        const answer = input.give(from, whole.subarray(from, sent + bytes), false);
        if (answer === "taken") sent += bytes;
        expect(input.receivedBytes).toBe(sent);
        expect(sent - got.reduce((sum, piece) => sum + piece.length, 0)).toBeLessThanOrEqual(limit);
        expect(input.give(sent + 1, whole.subarray(0, 1), false)).toBe("gap");
        if (reads > 10) take();
      }
      take();
      expect(Buffer.concat(got)).toEqual(whole.subarray(0, sent));
    }),
  );
});
