/** What a stream that somebody else may have made does with what is written to it. Pure. */

type StreamConfig = {
  readonly name: string;
  readonly subjects?: readonly string[];
  readonly [setting: string]: unknown;
};

/** By these a stream takes what is another's, or sends its own elsewhere. */
const suspect = ["sources", "mirror", "republish", "subject_transform"] as const;

/** A stream is not as those that this code makes. */
export class ForeignStream extends Error {}

/** Throws `ForeignStream` where it cannot be trusted with what this process keeps. */
export function checkShape(config: StreamConfig, subjects: readonly string[]): void {
  const settings = suspect.filter((setting) => isSet(config[setting]));
  const found = (config.subjects ?? []).toSorted();
  const others = found.join() === subjects.toSorted().join() ? [] : [`subjects '${found.join(", ")}'`];
  const wrong = [...settings.map((setting) => `'${setting}'`), ...others];
  if (wrong.length === 0) return;
  throw new ForeignStream(
    `stream '${config.name}' was made by somebody else, with ${wrong.join(" and ")}, by which what is kept there is read or forged; find out by whom, remove it ('nats stream rm ${config.name}'), and start again`,
  );
}

const isSet = (value: unknown): boolean =>
  value !== undefined && value !== null && !(Array.isArray(value) && value.length === 0);
