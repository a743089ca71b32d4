/** Episodes as people read them. Pure. */
import {
  type CompletionRecord,
  type Episode,
  type EpisodeGroup,
  maxMetadataBytes,
  type Prompt,
} from "@treadle/contracts";
import type { Tokenizer } from "@treadle/learning";

type Where = {
  readonly step: number;
  readonly worker: string;
  readonly tokenizer: Pick<Tokenizer, "transcribe">;
};

/** Longer episodes keep their text and lose what is said of each token. */
const maxPieces = 8192;

/** So many episodes from as many groups as possible: the first of each, then the second, and so on. */
export function sampleOf(groups: readonly EpisodeGroup[], count: number): { group: number; episode: Episode }[] {
  const most = Math.max(0, ...groups.map(({ episodes }) => episodes.length));
  const chosen: { group: number; episode: Episode }[] = [];
  for (let sample = 0; sample < most; sample++) {
    for (const [group, { episodes }] of groups.entries()) {
      const episode = episodes[sample];
      if (episode !== undefined && chosen.length < count) chosen.push({ group, episode });
    }
  }
  return chosen;
}

/** Its turns are what the mask tells apart: stretches of the policy's tokens, and of a tool's. */
export function completionRecord(
  episode: Episode,
  prompt: Prompt,
  { step, worker, tokenizer }: Where,
): CompletionRecord {
  const {
    tokens,
    mask,
    logprobs,
    policyVersions,
    promptLength,
    promptId,
    finishReason,
    reward,
    turnRewards = [],
  } = episode;
  const turns: CompletionRecord["turns"] = [
    { by: "prompt", text: tokenizer.transcribe(tokens.subarray(0, promptLength)) },
  ];
  for (let from = promptLength; from < tokens.length; ) {
    const isPolicy = mask[from] === 1;
    let to = from + 1;
    while (to < tokens.length && (mask[to] === 1) === isPolicy) to++;
    const text = tokenizer.transcribe(tokens.subarray(from, to));
    const own = isPolicy ? turnRewards.find(({ end }) => end === to) : undefined;
    const earned = own && { reward: rounded(own.reward) };
    if (isPolicy && to - from <= maxPieces) {
      turns.push({
        by: "policy",
        text,
        pieces: Array.from(tokens.subarray(from, to), (token) => tokenizer.transcribe(Int32Array.of(token))),
        logprobs: Array.from(logprobs.subarray(from, to), rounded),
        versions: Array.from(policyVersions.subarray(from, to)),
        ...earned,
      });
    } else turns.push({ by: isPolicy ? "policy" : "tool", text, ...earned });
    from = to;
  }
  const length = tokens.length - promptLength;
  const answer = prompt.answer === undefined ? {} : { answer: prompt.answer };
  return {
    step,
    worker,
    promptId,
    reward: rounded(reward),
    length,
    finishReason,
    ...answer,
    ...metadataOf(prompt),
    turns,
  };
}

function metadataOf({ metadata }: Prompt): Pick<CompletionRecord, "metadata"> {
  const isKept = metadata && Buffer.byteLength(JSON.stringify(metadata)) <= maxMetadataBytes;
  return isKept ? { metadata } : {};
}

/** JSON has no infinities, which the log-probability of an impossible token is. */
const rounded = (value: number): number => (Number.isFinite(value) ? Math.round(value * 1e4) / 1e4 : -1e4);
