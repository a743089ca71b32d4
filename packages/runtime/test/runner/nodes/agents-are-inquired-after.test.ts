import { type ControlPlane, TreadleError } from "@treadle/contracts";
import { expect, test, vi } from "vitest";
import { inquire } from "../../../src/runner/nodes/inquire.ts";
import { pass } from "../../support/pass.ts";

test("an agent is gone when nobody serves it, again and again; not when it is slow, or this process is cut off", async () => {
  const member = { kind: "node", name: "a", incarnation: 1, body: {} } as const;
  const verdict = (answers: readonly (TreadleError["code"] | "ok")[], isConnected = true, isWanted = true) => {
    const left = [...answers];
    const command = async () => {
      const answer = left.shift() ?? "ok";
      if (answer !== "ok") throw new TreadleError(answer, "no");
      return null;
    };
    return inquire({ isConnected, command } as Partial<ControlPlane> as ControlPlane, member, () => isWanted);
  };
  expect(await verdict(["node.lost", "node.lost", "node.lost"])).toBe("gone");
  expect(await verdict(["node.lost", "node.lost", "ok"])).toBe("there");
  expect(await verdict(["node.lost", "call.timeout"])).toBe("there");
  expect(await verdict(["control-plane.untrusted"])).toBe("there");
  expect(await verdict(["node.lost", "node.lost", "node.lost"], false)).toBe("unknown");
  expect(await verdict(["node.lost", "node.lost", "node.lost"], true, false)).toBe("unknown");
});

/** What is said of an agent that serves commands as `isServed` says at each instant, once it is known; `isLost`: of a question, by its number. */
async function inquiredFor(ms: number, isServed: (nowMs: number) => boolean, isLost: (question: number) => boolean) {
  const member = { kind: "node", name: "a", incarnation: 1, body: {} } as const;
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout", "setInterval", "clearInterval", "performance"] });
  try {
    const beganMs = performance.now();
    let asked = 0;
    const command = async () => {
      if (isLost(asked++)) return new Promise(() => {});
      if (!isServed(performance.now() - beganMs)) throw new TreadleError("node.lost", "no");
      return null;
    };
    const plane = { isConnected: true, command } as Partial<ControlPlane> as ControlPlane;
    let verdict: string | undefined;
    void inquire(plane, member, () => true).then((said) => {
      verdict = said;
    });
    await pass(ms);
    return verdict;
  } finally {
    vi.useRealTimers();
  }
}

test("MB4: an agent that was killed has gone within a second or so, though the first question of all went to it", async () => {
  const isFirst = (question: number) => question === 0;
  expect(await inquiredFor(1300, () => false, isFirst)).toBe("gone");
});

test("MB4: an agent that serves nobody for half a second is there", async () => {
  for (const fromMs of [0, 200, 700]) {
    const isAway = (nowMs: number) => nowMs >= fromMs && nowMs < fromMs + 500;
    expect(
      await inquiredFor(
        1500,
        (nowMs) => !isAway(nowMs),
        () => false,
      ),
      `from ${fromMs} ms on`,
    ).toBe("there");
    expect(
      await inquiredFor(
        2500,
        (nowMs) => !isAway(nowMs),
        (question) => question === 0,
      ),
    ).toBe("there");
  }
});

test("MB4: the answer to any question counts, however late it comes", async () => {
  const member = { kind: "node", name: "a", incarnation: 1, body: {} } as const;
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout", "setInterval", "clearInterval", "performance"] });
  try {
    let answer = () => {};
    const answered = new Promise<null>((resolve) => {
      answer = () => resolve(null);
    });
    const plane = { isConnected: true, command: () => answered } as Partial<ControlPlane> as ControlPlane;
    let verdict: string | undefined;
    void inquire(plane, member, () => true).then((said) => {
      verdict = said;
    });
    await pass(4500);
    expect(verdict).toBeUndefined();
    answer(); // to the first question, late
    await pass(100);
    expect(verdict).toBe("there");
  } finally {
    vi.useRealTimers();
  }
});

test("MB4: an agent is gone when nobody serves it, though each look is over before that is known", async () => {
  const member = { kind: "node", name: "a", incarnation: 1, body: {} } as const;
  for (const provenAfterMs of [0, 400, 990, 1025, 1900, 3100]) {
    vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout", "setInterval", "clearInterval", "performance"] });
    try {
      const command = () =>
        new Promise((_, reject) => setTimeout(() => reject(new TreadleError("node.lost", "no")), provenAfterMs));
      const plane = { isConnected: true, command } as Partial<ControlPlane> as ControlPlane;
      let verdict: string | undefined;
      void inquire(plane, member, () => true).then((said) => {
        verdict = said;
      });
      await pass(1100 + 2 * Math.max(provenAfterMs, 400));
      expect(verdict, `proven after ${provenAfterMs} ms`).toBe("gone");
    } finally {
      vi.useRealTimers();
    }
  }
});
