import { expect, test, vi } from "vitest";
import { DevicePool } from "../../src/pool/device-pool.ts";
import { patient } from "./pool-machine.ts";

test.each([
  ["has been suspended itself for an hour", 3_600_000, false],
  ["has looked, again and again, for as long", 1000, true],
])(
  "PS1: a run of which nothing was heard is ended by a pool that %s: '%s' ms at a time",
  async (_, stepMs, isEnded) => {
    vi.useFakeTimers({ toFake: ["setInterval", "clearInterval"] });
    let nowMs = 0;
    const pool = new DevicePool({ ...patient, beatLimitMs: 30_000 }, { now: () => nowMs });
    const ended = vi.fn<(why: string) => void>();
    try {
      pool.restore("a", { reply: () => {}, end: ended }, { workflow: "w", devices: [] } as never, {});
      for (let passed = 0; passed < 3_600_000; passed += stepMs) {
        nowMs += stepMs;
        vi.advanceTimersByTime(100);
      }
      expect(ended).toHaveBeenCalledTimes(isEnded ? 1 : 0);
    } finally {
      await pool.close();
      vi.useRealTimers();
    }
  },
);
