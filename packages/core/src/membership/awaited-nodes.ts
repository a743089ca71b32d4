/**
 * Decides whether a run waits for more nodes before it begins. One that is there and does not answer, while enough others
 * have, is waited for as long as a loaded machine takes to answer, and no longer.
 */

export type AwaitedNodes = {
  readonly minNodes: number;
  readonly numUsable: number;
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

export function awaitNodes({ minNodes, numUsable, asked, deadlineMs }: AwaitedNodes, nowMs: number): AwaitDecision {
  if (numUsable < minNodes) return nowMs >= deadlineMs ? { type: "fail" } : { type: "wait", untilMs: deadlineMs };
  const lastMs = Math.max(...asked.map(({ sinceMs }) => sinceMs + answerPatienceMs), nowMs);
  if (lastMs > nowMs) return { type: "wait", untilMs: lastMs };
  return { type: "go", without: asked.map(({ node }) => node) };
}
