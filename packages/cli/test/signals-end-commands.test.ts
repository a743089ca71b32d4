import { afterEach, expect, test, vi } from "vitest";
import { interruptible } from "../src/commands/interruptible.ts";

afterEach(() => {
  vi.useRealTimers();
  vi.restoreAllMocks();
});

const exits = () => vi.spyOn(process, "exit").mockImplementation((() => {}) as never);

test("a second signal ends a command that does not stop; one that has stopped is left alone", async () => {
  vi.useFakeTimers();
  const exit = exits();
  const seen: string[] = [];
  let finish = () => {};
  const work = interruptible(({ stop, kill }) => {
    stop.addEventListener("abort", () => seen.push("stop"));
    kill.addEventListener("abort", () => seen.push("kill"));
    return new Promise<void>((resolve) => {
      finish = resolve;
    });
  });
  process.emit("SIGTERM");
  expect(seen).toEqual(["stop"]);
  vi.advanceTimersByTime(3_600_000);
  expect(exit).not.toHaveBeenCalled();
  process.emit("SIGTERM");
  expect(seen).toEqual(["stop", "kill"]);
  expect(exit).not.toHaveBeenCalled();
  vi.advanceTimersByTime(1000);
  expect(exit).toHaveBeenCalledExactlyOnceWith(130);
  finish();
  await work;
});

test("the third signal ends at once; an orderly end within its time is not cut short", async () => {
  vi.useFakeTimers();
  const exit = exits();
  const hanging = new Promise<never>(() => {});
  void interruptible(() => hanging);
  for (const signal of ["SIGINT", "SIGTERM", "SIGINT"] as const) process.emit(signal);
  expect(exit).toHaveBeenCalledExactlyOnceWith(130);
  process.removeAllListeners("SIGINT").removeAllListeners("SIGTERM");
  vi.clearAllTimers();
  exit.mockClear();
  const work = interruptible(
    ({ kill }) => new Promise<void>((resolve) => kill.addEventListener("abort", () => resolve())),
  );
  for (const signal of ["SIGINT", "SIGINT"] as const) process.emit(signal);
  await work;
  vi.advanceTimersByTime(60_000);
  expect(exit).not.toHaveBeenCalled();
});

test("as many runs at once as there may be listen for the end, and none is warned of", async () => {
  const warned = vi.spyOn(process, "emitWarning").mockImplementation(() => {});
  await interruptible(async ({ stop, kill }) => {
    for (let run = 0; run < 64; run++) for (const signal of [stop, kill]) signal.addEventListener("abort", () => {});
  });
  expect(warned).not.toHaveBeenCalled();
});
