/**
 * Under which name tools know an episode: its component, prompt and sample, its number in the owner's call, and how often what a
 * tool held of it was lost since, as what a tool holds for an earlier one of them is another's.
 */
export const nameOf = (stem: string, numbered: string, numLosses: number): string => `${stem}~${numbered}~${numLosses}`;

/** `rollout:7*8/3`, whoever owns it. */
export const stemOf = (name: string): string => name.replace(/~[^~]*~\d+$/, "");

/** As nobody knows it yet. */
export const nameAfterLoss = (name: string): string =>
  name.replace(/~(\d+)$/, (_, numLosses: string) => `~${Number(numLosses) + 1}`);
