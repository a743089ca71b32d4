/**
 * Decides whether a run waits for more nodes before it begins. Those that are there and do not answer, while enough others
 * have, are waited for as long as a loaded machine takes to answer: once, however many come meanwhile.
 */

export type AwaitedNodes = {
  readonly minNodes: number;
  readonly numUsable: number;
  /** since when as many as are wanted have been usable; undefined while they are not */
  readonly enoughSinceMs: number | undefined;
  /** those that have been asked and have not answered yet, and since when */
  readonly asked: readonly { readonly node: string; readonly sinceMs: number }[];
  /** how long the run waits for enough nodes at all */
  readonly deadlineMs: number;
};

export type AwaitDecision =
  | { readonly type: "go"; readonly without: readonly string[] }
  | { readonly type: "wait"; readonly untilMs: number }
  | { readonly type: "fail" };

export const answerPatienceMs = 5000;

export function awaitNodes(
  { minNodes, numUsable, enoughSinceMs, asked, deadlineMs }: AwaitedNodes,
  nowMs: number,
): AwaitDecision {
  if (numUsable < minNodes) return nowMs >= deadlineMs ? { type: "fail" } : { type: "wait", untilMs: deadlineMs };
  const answersUntilMs = Math.max(...asked.map(({ sinceMs }) => sinceMs + answerPatienceMs), nowMs);
  const lastMs = Math.min(answersUntilMs, (enoughSinceMs ?? nowMs) + answerPatienceMs, Math.max(deadlineMs, nowMs));
  if (lastMs > nowMs) return { type: "wait", untilMs: lastMs };
  return { type: "go", without: asked.map(({ node }) => node) };
}
