/** Commands may fill the disk that the service spools their output to. */
import { EventEmitter } from "node:events";
import { expect, test, vi } from "vitest";

let isFull = false;
vi.mock("node:fs", async (original) => {
  const fs = await original<typeof import("node:fs")>();
  const refused = () => Object.assign(new Error("ENOSPC: no space left on device, write"), { code: "ENOSPC" });
  return {
    ...fs,
    openSync: (...args: Parameters<typeof fs.openSync>) => {
      if (isFull) throw refused();
      return fs.openSync(...args);
    },
    writeSync: (...args: Parameters<typeof fs.writeSync>) => {
      if (isFull) throw refused();
      return fs.writeSync(...args);
    },
  };
});

const { ActionLog } = await import("../src/grpc/action-log.ts");
const { OutputSpool, DiskBudget } = await import("../src/grpc/output-spool.ts");

const texts = (events: readonly object[]): string[] =>
  events.map((event) => (event as { output: { stdout: Buffer } }).output.stdout.toString());

test.each(["before a file is open", "in its midst"])(
  "OS2 what finds no room %s is refused, and counts for nothing",
  (when) => {
    const events: object[] = [];
    let hasRoom = false;
    const sink = Object.assign(new EventEmitter(), {
      write: (event: object) => {
        events.push(event);
        return hasRoom;
      },
      end: () => {},
    });
    const budget = new DiskBudget(2 ** 20);
    const spool = new OutputSpool(sink, budget);
    expect(spool.give("stdout", Buffer.from("sent"))).toBe(true);
    if (when === "in its midst") expect(spool.give("stdout", Buffer.from("kept"))).toBe(true);
    const used = budget.usedBytes;
    isFull = true;
    expect(spool.give("stdout", Buffer.from("lost"))).toBe(false);
    isFull = false;
    expect(budget.usedBytes).toBe(used);
    expect(spool.give("stdout", Buffer.from("later"))).toBe(true);
    hasRoom = true;
    sink.emit("drain");
    expect(texts(events).join(" ")).toBe(`sent ${when === "in its midst" ? "kept" : ""}later`);
  },
);

test("IK2 of an action that is followed, too", () => {
  const budget = new DiskBudget(2 ** 20);
  const log = new ActionLog(budget);
  const large = Buffer.alloc(20_000, "a");
  isFull = true;
  expect(log.give("stdout", large)).toBe(false);
  isFull = false;
  expect([budget.usedBytes, log.keptBytes]).toEqual([0, 0]);
  expect(log.give("stdout", Buffer.alloc(20_000, "b"))).toBe(true);
  const events: object[] = [];
  const call = Object.assign(new EventEmitter(), {
    write: (event: object) => {
      events.push(event);
      return true;
    },
    end: () => {},
  });
  log.follow(call);
  expect(texts(events)).toEqual(["b".repeat(20_000)]);
  log.forget();
});
