/**
 * The journal of a run: typed records over its log, which is a file, or is kept at the NATS servers as well.
 *
 * J1: the runner may be killed at any instant; what has been committed here is done and is never done
 * again; what has not been committed is done again from the state of the last committed step.
 */
import { type RunLog, StateReference } from "@treadle/contracts";
import { z } from "zod";
import { damaged, JournalFile, readEntries } from "./journal-file.ts";

/** JSON has no numbers for what a diverged loss is. */
const Measured = z.union([z.number(), z.literal(["NaN", "Infinity", "-Infinity"]).transform(Number)]);

/** Component name to its state. A path alone is a single file, as earlier versions wrote it; whoever opens it refuses it. */
const States = z.record(
  z.string(),
  z.union([StateReference, z.string().transform((folder): StateReference => ({ folder, files: [] }))]),
);
export type States = Readonly<Record<string, StateReference>>;

/** Where the items that wait after it are whole, of those that are saved so; absent where none waits. */
const Waiting = StateReference.optional();

const Step = z.object({
  step: z.int().nonnegative(),
  seconds: z.number(),
  metrics: z.record(z.string(), Measured),
  /** what the step was given, and trained on but for what is carried or cut: the ledger that shows that nothing was lost or trained twice */
  items: z.array(z.string()),
  /** where it left the dataset, of one that says so */
  position: z.json().optional(),
  /** what waits for a later step, as `encodeItem` writes it, in base64 */
  carried: z.array(z.string()).optional(),
  /** ids of what no step finishes, by cause */
  cut: z.record(z.string(), z.array(z.string())).optional(),
  waiting: Waiting,
});

/** Steps that are committed together, since their states are saved after the last of them alone. */
const Steps = z.object({ type: z.literal("steps"), steps: z.array(Step).min(1), state: States });

export const JournalRecord = z.discriminatedUnion("type", [
  z.object({ type: z.literal("started"), runId: z.string(), workflow: z.string(), at: z.string() }),
  z.object({ type: z.literal("resumed"), at: z.string(), fromStep: z.int() }),
  z.object({
    type: z.literal("once"),
    name: z.string(),
    value: z.unknown(),
    /** what was reported meanwhile: a resumed run is told it by no other record */
    metrics: z.record(z.string(), Measured).default({}),
    state: States,
    waiting: Waiting,
  }),
  Step.extend({ type: z.literal("step"), state: States }),
  z.object({ type: z.literal("finished"), at: z.string() }),
]);
export type JournalRecord = z.infer<typeof JournalRecord>;
/** A step as it is committed, besides its state. */
export type CommittedRecord = z.infer<typeof Step>;

export class Journal {
  readonly #records: JournalRecord[];
  readonly #log: RunLog;
  #tail: Promise<void> = Promise.resolve();

  /** `name`: as errors call the log. Throws `journal.corrupt`. */
  constructor(log: RunLog, name: string) {
    this.#log = log;
    this.#records = parseAll(log.entries, name);
  }

  static async open(path: string): Promise<Journal> {
    const file = await JournalFile.open(path);
    try {
      return new Journal(file, path);
    } catch (error) {
      await file.close();
      throw error;
    }
  }

  get records(): readonly JournalRecord[] {
    return this.#records;
  }

  /**
   * Resolves once the record survives. Records are written in the order of the calls; after one that could not be
   * written, all others are refused for the same reason, since they would follow a torn one.
   */
  append(record: JournalRecord): Promise<void> {
    return this.#append(inWritten(record), [record]);
  }

  /** Commits steps together, in their order: all of them, or none. `state` is that after the last. */
  appendSteps(steps: readonly CommittedRecord[], state: States): Promise<void> {
    const records = steps.map((step, at): JournalRecord => stepRecord(step, at === steps.length - 1 ? state : {}));
    const [only] = records;
    if (records.length === 1 && only) return this.append(only);
    return this.#append({ type: "steps", steps: steps.map(inWritten), state }, records);
  }

  #append(written: object, records: readonly JournalRecord[]): Promise<void> {
    const entry = JSON.stringify(written);
    const files = records.flatMap(filesOf);
    const appended = this.#tail.then(async () => {
      await this.#log.append(entry, files);
      this.#records.push(...records);
    });
    this.#tail = appended;
    appended.catch(() => {});
    return appended;
  }

  get lastStep(): Extract<JournalRecord, { type: "step" }> | undefined {
    return this.#records.findLast((record) => record.type === "step");
  }

  /** The states of the newest record that has any. */
  get state(): States {
    for (let i = this.#records.length - 1; i >= 0; i--) {
      const record = this.#records[i];
      if (record && (record.type === "step" || record.type === "once") && Object.keys(record.state).length > 0) {
        return record.state;
      }
    }
    return {};
  }

  once(name: string): Extract<JournalRecord, { type: "once" }> | undefined {
    return this.#records.find((record) => record.type === "once" && record.name === name) as
      | Extract<JournalRecord, { type: "once" }>
      | undefined;
  }

  async close(): Promise<void> {
    await this.#tail.catch(() => {});
    await this.#log.close();
  }
}

const inWritten = (record: JournalRecord | CommittedRecord): object =>
  "metrics" in record ? { ...record, metrics: writable(record.metrics) } : record;

const writable = (metrics: Readonly<Record<string, number>>): Record<string, number | string> =>
  Object.fromEntries(
    Object.entries(metrics).map(([name, value]) => [name, Number.isFinite(value) ? value : String(value)]),
  );

/** Reads the records of a journal file's text; `validBytes` is the length up to the end of the last good line. */
export function readRecords(text: string, path: string): { records: JournalRecord[]; validBytes: number } {
  const { entries, validBytes } = readEntries(text, path);
  return { records: parseAll(entries, path), validBytes };
}

function parseAll(entries: readonly string[], name: string): JournalRecord[] {
  return entries.flatMap((entry, index) => {
    const records = parseEntry(entry);
    if (records === undefined) throw damaged(name, index + 1);
    return records;
  });
}

/** The files that an entry of the log refers to. */
export function stateFilesOf(entry: string): string[] {
  return (parseEntry(entry) ?? []).flatMap(filesOf);
}

function filesOf(record: JournalRecord): string[] {
  if (!("state" in record)) return [];
  const { state, waiting } = record;
  return [...Object.values(state), ...(waiting ? [waiting] : [])].flatMap(({ folder, files }) =>
    files.length === 0 ? [folder] : files.map((name) => `${folder}/${name}`),
  );
}

function parseEntry(entry: string): JournalRecord[] | undefined {
  try {
    const json: unknown = JSON.parse(entry);
    const together = Steps.safeParse(json).data;
    if (together) {
      const { steps, state } = together;
      return steps.map((step, at) => stepRecord(step, at === steps.length - 1 ? state : {}));
    }
    const record = JournalRecord.safeParse(json).data;
    return record && [record];
  } catch {
    return undefined;
  }
}

const stepRecord = (step: CommittedRecord, state: States): JournalRecord => ({ type: "step", ...step, state });
