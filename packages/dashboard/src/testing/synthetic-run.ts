/** The events of a made-up run, the same every time: what views are tested and looked at with. */
import type { RunEvent } from "@treadle/contracts";

export type SyntheticOptions = {
  readonly steps?: number;
  readonly stepMs?: number;
  /** the rollout worker is killed in this step */
  readonly killedInStep?: number | undefined;
};

export const startMs = Date.UTC(2026, 2, 1, 9, 0, 0);

export function syntheticRun({ steps = 60, stepMs = 1500, killedInStep }: SyntheticOptions = {}): RunEvent[] {
  const random = lehmer(7);
  const events: RunEvent[] = [];
  let atMs = startMs;
  const later = (ms: number) => {
    atMs += ms;
    return atMs;
  };
  const folder = "runs/reasoning-grpo-0042";
  events.push(
    {
      type: "run-started",
      atMs,
      runId: "reasoning-grpo-0042",
      workflow: "reasoning-grpo",
      mode: "hybrid",
      steps,
      folder,
    },
    {
      type: "plan",
      mode: "hybrid",
      atMs: later(5),
      explanation: [
        "rollout and actor pipeline on disjoint devices, since generation takes 3.1 times as long as training",
      ],
      placement: [
        { component: "rollout", devices: ["cpu:0", "cpu:1", "cpu:2"], mode: "spatial", granularity: 16 },
        { component: "inference", devices: ["cpu:3"], mode: "temporal", granularity: 32 },
        { component: "actor", devices: ["cpu:3"], mode: "temporal", granularity: "all" },
      ],
    },
  );
  for (const worker of ["rollout/0", "rollout/1", "rollout/2", "inference/0", "actor/0"]) {
    events.push({ type: "worker-started", atMs: later(40), worker, pid: 4000 + events.length });
  }
  for (let done = 0; done <= 4; done++)
    events.push({ type: "phase", atMs: later(300), name: "compiling", done, total: 4 });
  events.push({ type: "evaluation", atMs: later(200), step: 0, accuracy: 0.33 });
  for (let step = 1; step <= steps; step++) {
    const progress = 1 - Math.exp((-3 * step) / steps);
    events.push({ type: "step-started", atMs, step });
    events.push({
      type: "utilisation",
      atMs: later(stepMs / 3),
      components: {
        rollout: split(0.7 + 0.1 * random(), 0.02, 0.12, 0.03),
        inference: split(0.3 + 0.1 * random(), 0.22, 0.2, 0.05),
        actor: split(0.34 + 0.1 * random(), 0.08, 0.4, 0.06),
      },
    });
    events.push({
      type: "queue",
      atMs: later(stepMs / 10),
      channel: "prompts",
      depth: Math.round(60 * random()),
      capacity: 64,
    });
    events.push({ type: "queue", atMs, channel: "episodes", depth: Math.round(20 * random()) });
    if (step === killedInStep) {
      const worker = "rollout/1";
      events.push(
        {
          type: "worker-died",
          atMs: later(50),
          worker,
          pid: 4003,
          signal: "SIGKILL",
          code: null,
          reason: "out of memory",
        },
        { type: "waiting", atMs: later(200), who: "actor/0", on: "'episodes' from 'rollout/1'", seconds: 2.4 },
        { type: "worker-restarted", atMs: later(400), worker, pid: 4103 },
        { type: "waiting", atMs: later(10), who: "actor/0", on: "'episodes' from 'rollout/1'", seconds: 0 },
      );
    }
    const seconds = (stepMs / 1000) * (0.9 + 0.2 * random());
    const reward = 0.3 + 0.6 * progress + 0.05 * (random() - 0.5);
    events.push({
      type: "step-finished",
      atMs: later(stepMs / 2),
      step,
      seconds,
      tokens: Math.round(18_000 * (0.9 + 0.2 * random())),
      metrics: { reward, loss: 0.02 * (random() - 0.5), kl: 0.01 * progress, entropy: 1.6 - progress },
      policyVersion: step,
      componentSeconds: { rollout: seconds * 0.6, inference: seconds * 0.12, actor: seconds * 0.28 },
    });
    if (step % 10 === 0) {
      const text = step % 20 === 0 ? "46" : "45";
      const reward = step % 20 === 0 ? 1 : 0;
      events.push({ type: "sample", atMs: later(5), step, worker: "rollout/0", reward, prompt: "12+34=", text });
      events.push({
        type: "evaluation",
        atMs: later(20),
        step,
        accuracy: 0.33 + 0.5 * progress + 0.03 * (random() - 0.5),
      });
      events.push({
        type: "checkpoint",
        atMs: later(5),
        step,
        path: `${folder}/checkpoints/step-${String(step).padStart(6, "0")}`,
      });
    }
  }
  events.push({
    type: "run-finished",
    atMs: later(100),
    summary: {
      runId: "reasoning-grpo-0042",
      mode: "hybrid",
      steps,
      seconds: (atMs - startMs) / 1000,
      rewardFirst: 0.31,
      rewardLast: 0.87,
      evalBefore: 0.33,
      evalAtStart: 0.33,
      evalAfter: 0.81,
      tokensPerSecond: 11_873.4,
      stepSeconds: { mean: 1.51, p50: 1.5, p95: 1.63 },
      policyVersion: steps,
      restarts: killedInStep === undefined ? 0 : 1,
    },
  });
  return events;
}

function split(compute: number, lockWait: number, channelWait: number, transfer: number) {
  return { compute, lockWait, channelWait, transfer, idle: 1 - compute - lockWait - channelWait - transfer };
}

/** Park and Miller's generator: the same numbers on every machine. */
function lehmer(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state * 48_271) % 2_147_483_647;
    return state / 2_147_483_647;
  };
}
