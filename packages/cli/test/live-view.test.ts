import { EventEmitter } from "node:events";
import fc from "fast-check";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { openLiveView } from "../src/view/live.ts";

const frameMs = 100;
const showCursor = "\u001b[?25h";

function setUp() {
  const written: string[] = [];
  const stream = Object.assign(new EventEmitter(), {
    columns: 80,
    rows: 24,
    isTTY: true,
    write: (text: string) => written.push(text) > 0,
  });
  let numFrames = 0;
  const render = () => [`frame ${++numFrames}`];
  const view = openLiveView(stream as unknown as NodeJS.WriteStream, render);
  return { view, stream, written, numFrames: () => numFrames };
}

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

describe("the live view", () => {
  it("LV1: draws at most one frame in 100 ms, whatever happens, and the last one when it closes", () => {
    fc.assert(
      fc.property(fc.array(fc.integer({ min: 0, max: 250 }), { maxLength: 40 }), (waits) => {
        const { view, stream, numFrames } = setUp();
        const startMs = Date.now();
        for (const [i, ms] of waits.entries()) {
          view.update();
          if (i % 3 === 0) stream.emit("resize");
          vi.advanceTimersByTime(ms);
          expect(numFrames()).toBeLessThanOrEqual(1 + (Date.now() - startMs) / frameMs);
        }
        view.update();
        const before = numFrames();
        view.close();
        expect(numFrames()).toBe(before + 1);
        vi.advanceTimersByTime(5000);
        expect(numFrames()).toBe(before + 1);
      }),
      { numRuns: 30 },
    );
  });

  it("LV2: shows the cursor again when it closes, and when the process exits before that", () => {
    const others = process.listeners("exit");
    const { view, written } = setUp();
    const onExit = process.listeners("exit").filter((each) => !others.includes(each));
    expect(written.join("")).not.toContain(showCursor);
    for (const listener of onExit) listener.call(process, 1);
    expect(written.at(-1)).toBe(showCursor);
    written.length = 0;
    view.close();
    expect(written.at(-1)).toBe(showCursor);
    expect(
      process.listeners("exit").filter((each) => !others.includes(each) && onExit.includes(each)).length,
    ).toBeLessThan(onExit.length);
  });
});
