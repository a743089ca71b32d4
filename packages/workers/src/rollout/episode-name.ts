/**
 * Under which name tools know an episode: its component, prompt and sample, the owner's call, and how often its host was lost
 * since, as what a tool holds for an earlier one of them is another's.
 */
export const nameOf = (stem: string, nonce: string, numLosses: number): string => `${stem}~${nonce}~${numLosses}`;

/** `rollout:7*8/3`, whoever owns it. */
export const stemOf = (name: string): string => name.replace(/~[^~]*~\d+$/, "");
