import { z } from "zod";

import { FlowEdge } from "./plan.ts";

const name = z.string().min(1);
const perStep = z.number().nonnegative();

/** One arrow of a traced flow graph, with what one step moves over it. */
const TracedEdge = FlowEdge.extend({ channel: name, itemsPerStep: perStep, bytesPerStep: perStep });

/**
 * What one step of a workflow does (RLinf §3.4), found by watching calls and channels; nothing is declared.
 * The runner is no component: what it puts comes from outside, so `producers` of such a channel is empty.
 */
export const FlowGraph = z.strictObject({
  /** items, such as prompts, that one step puts */
  batch: z.int().positive(),
  /** in the order of their first call in a step */
  components: z.record(
    name,
    z.strictObject({
      /** by method name; `takes` and `puts` name channels. A method with neither is serial work: a barrier or a preparation. */
      methods: z.record(name, z.strictObject({ callsPerStep: perStep, takes: z.array(name), puts: z.array(name) })),
    }),
  ),
  channels: z.record(
    name,
    z.strictObject({
      producers: z.array(name),
      consumers: z.array(name),
      itemsPerStep: perStep,
      bytesPerStep: perStep,
      /**
       * of a channel in a cycle: takes of its busiest rank. Who takes more often than all that goes round comes by has parts of it,
       * which take turns
       */
      takesPerStep: perStep.optional(),
    }),
  ),
  edges: z.array(TracedEdge),
  /** who calls whom directly, or sends messages (`method` absent); such as weights that rollout asks of the actor */
  calls: z.array(z.strictObject({ from: name, to: name, method: name.optional(), timesPerStep: perStep })).default([]),
  /** components that feed each other within a step, two and more each */
  cycles: z.array(z.array(name).min(2)),
});
export type FlowGraph = z.infer<typeof FlowGraph>;
