/**
 * What is expected of actions: from what was stated, what the operator has stored of their kind, and what earlier ones took.
 * Pure state; the caller says what it saw.
 *
 * HE1 the elasticity that an action states comes first, then the stored one of its kind. Where executions contradict it, the
 *    measured one replaces it (LC1), for the same tenant, kind, range of units and stated curve: nothing is known of another
 *    curve yet, such as of a new profile. One within 2 % at all numbers of units is the same: clients compute theirs, each time a little differently.
 * HE2 what one tenant calls a kind teaches nothing of what another does.
 * HE3 what is saved, and read by another history, decides there as it does here, but for the least recently used of very many.
 */
import { type ActionSpec, type Amount, allowedUnits } from "./action-spec.ts";
import { DurationHistory } from "./duration-history.ts";
import { type Elasticity, efficiencyAt, secondsAt } from "./elasticity.ts";
import { KeptByTenant, mostKinds } from "./kept-by-tenant.ts";
import { LiveCurve, type LiveCurveState } from "./live-curve.ts";
import { type SavedHistory, savedHistory } from "./saved-history.ts";

/** What is known of a kind before anything of it has run. */
export type StoredCurve = {
  readonly elasticity: Elasticity;
  /** seconds on one unit */
  readonly duration: number;
  /** whose units */
  readonly resource: string;
  /** the numbers of units that were measured lie between them */
  readonly units: { readonly min: number; readonly max: number };
};

/** `oneUnitSeconds` is undefined where nothing is known. */
export type Expectation = { readonly elasticity: Elasticity | undefined; readonly oneUnitSeconds: number | undefined };

export type CurveSource = "given" | "stored" | "measured";

export type KindReport = {
  /** of the curve; undefined where actions of the kind have none */
  readonly source: CurveSource | undefined;
  /** E(m) at up to eight of the numbers of units that the last action allowed, where its curve has any */
  readonly efficiency: readonly { readonly units: number; readonly efficiency: number }[];
  readonly oneUnitSeconds: number | undefined;
  /** how far the seconds of the last executions were from what was expected: |a - b| / max(a, b), mean; undefined before the first */
  readonly predictionError: number | undefined;
};

/** What a track is of, but for its curve. */
type About = {
  readonly kind: string;
  readonly resource: string;
  readonly amount: Amount;
  /** whether executions are measured in stated seconds */
  readonly hasUnit: boolean;
};
type Track = {
  readonly about: About;
  /** `about` and whatever else tells curves apart, as text */
  readonly aboutName: string;
  readonly stated: Elasticity;
  readonly curve: LiveCurve;
  believed: Elasticity;
  believedScale: number;
};
/** of an action: `exact` is that of its track where no other is near */
type Names = { readonly aboutName: string; readonly exact: string; name: string | undefined };
type Seen = { spec: ActionSpec; at: number; errors: number; meanError: number };

/** of a tenant */
const mostTracks = 64;
const errorWindow = 32;
const reportedUnits = 8;
/** The scale of a curve of measured seconds follows in such steps. */
const noticeableScale = 0.02;
/** And a serial share in such ones. */
const noticeableShare = 0.01;
/** of the logarithm of seconds: nearer curves are one */
const noticeableCurve = 0.02;

export class ActionHistory {
  /** by kind, for every tenant */
  readonly stored: ReadonlyMap<string, StoredCurve>;
  readonly #durations: DurationHistory;
  readonly #tracks = new KeptByTenant<Track>(mostTracks);
  readonly #seen = new KeptByTenant<Seen>(mostKinds);
  readonly #names = new WeakMap<ActionSpec, Names>();
  #observed = 0;

  /** `saved`: what another has learned (HE3) */
  constructor(stored: ReadonlyMap<string, StoredCurve> = new Map(), saved?: SavedHistory) {
    this.stored = stored;
    this.#durations = new DurationHistory(undefined, saved?.durations);
    for (const { tenant, kind, resource, amount, hasUnit, stated, curve, ...believed } of saved?.curves ?? []) {
      const about = { kind, resource, amount, hasUnit };
      this.#tracks.use(tenant, namesOf(about, stated).exact, () => ({ ...trackOf(about, stated, curve), ...believed }));
    }
  }

  /** of executions, so far */
  get numObserved(): number {
    return this.#observed;
  }

  /** HE3 */
  saved(): SavedHistory {
    const curves = [...this.#tracks.inTurn()].map(([tenant, , track]) => {
      const { about, stated, curve, believed, believedScale } = track;
      return { tenant, ...about, stated, curve: curve.state, believed, believedScale };
    });
    return savedHistory(this.#durations.saved(), curves);
  }

  /** With the stored elasticity of its kind, where it names a key and states none. */
  complete(spec: ActionSpec): ActionSpec {
    const stored = this.stored.get(spec.kind);
    if (stored === undefined || spec.key !== stored.resource || spec.elasticity !== undefined) return spec;
    return { ...spec, elasticity: stored.elasticity };
  }

  expect(spec: ActionSpec): Expectation {
    const stated = this.#statedSeconds(spec);
    const track = spec.elasticity && this.#trackOf(spec);
    if (track === undefined) return { elasticity: spec.elasticity, oneUnitSeconds: stated };
    const isMeasured = track.curve.serialShare !== undefined;
    // A measured curve brings its own seconds on one unit where none are stated.
    const oneUnit = isMeasured && spec.duration !== "unknown" ? (this.#unitOf(spec) ?? 1) : stated;
    return {
      elasticity: track.believed,
      oneUnitSeconds: finite(oneUnit === undefined ? undefined : oneUnit * track.curve.scale),
    };
  }

  /**
   * What an action took on so many units of its key, alone on them and without its preparation. The caller leaves out what was cut
   * short.
   */
  observe(spec: ActionSpec, units: number, seconds: number): void {
    this.#noteError(spec, units, seconds);
    if (spec.elasticity !== undefined) this.#teach(spec, spec.elasticity, units, seconds);
    this.#durations.observe(spec.kind, seconds, units, this.expect(spec).elasticity, spec.tenant);
  }

  /** Of what other executions taught: where one was observed, this says whether only its kind is expected to be otherwise. */
  get numForgotten(): number {
    return this.#tracks.numForgotten + this.#durations.numForgotten;
  }

  /** Another number of units to try it on, at most `most`: see `LiveCurve.probe`. */
  probe(spec: ActionSpec, most: number): number | undefined {
    const units = spec.elasticity && this.#trackOf(spec)?.curve.probe();
    return units !== undefined && units <= most ? units : undefined;
  }

  /** By kind, of what ran last; of one tenant, or of all together. */
  report(tenant?: string): ReadonlyMap<string, KindReport> {
    const last = new Map<string, Seen>();
    for (const [kind, seen] of this.#seen.entries(tenant))
      if ((last.get(kind)?.at ?? -1) < seen.at) last.set(kind, seen);
    return new Map([...last].map(([kind, seen]) => [kind, this.#reportOf(seen)]));
  }

  #reportOf({ spec, errors, meanError }: Seen): KindReport {
    const { elasticity, oneUnitSeconds } = this.expect(spec);
    const all = spec.key === undefined ? [] : allowedUnits(spec.cost[spec.key]!);
    const some =
      all.length <= reportedUnits ? all : all.filter((m) => m === all.at(-1) || Number.isInteger(Math.log2(m)));
    const efficiency = some.slice(-reportedUnits).flatMap((units) => {
      const at = elasticity && efficiencyAt(elasticity, units);
      return at === undefined ? [] : [{ units, efficiency: at }];
    });
    const predictionError = errors === 0 ? undefined : meanError;
    return { source: this.#sourceOf(spec), efficiency, oneUnitSeconds, predictionError };
  }

  #sourceOf(spec: ActionSpec): CurveSource | undefined {
    if (spec.elasticity === undefined) return undefined;
    if (this.#trackOf(spec)?.curve.serialShare !== undefined) return "measured";
    const stored = this.stored.get(spec.kind)?.elasticity;
    return JSON.stringify(stored) === JSON.stringify(spec.elasticity) ? "stored" : "given";
  }

  #statedSeconds({ kind, tenant, duration }: ActionSpec): number | undefined {
    if (duration !== "history") return duration === "unknown" ? undefined : duration;
    return this.#durations.estimate(kind, tenant) ?? this.stored.get(kind)?.duration;
  }

  /** What its executions are measured in: stated seconds, where they may be compared. */
  #unitOf({ duration, elasticity }: ActionSpec): number | undefined {
    return typeof duration === "number" && elasticity?.type !== "seconds" ? duration : undefined;
  }

  #teach(spec: ActionSpec, elasticity: Elasticity, units: number, seconds: number): void {
    // A function is its caller's code: there is nothing that tells two of them apart.
    if (elasticity.type === "function") return;
    const unit = this.#unitOf(spec);
    const make = (): Track => trackOf(this.#aboutOf(spec), elasticity);
    const track = this.#tracks.use(spec.tenant, this.#nameOf(spec), make);
    track.curve.observe(units, seconds / (unit ?? 1));
    believe(track);
  }

  #trackOf(spec: ActionSpec): Track | undefined {
    return this.#tracks.get(spec.tenant, this.#nameOf(spec));
  }

  /** HE1: of the track whose curve is the nearest, or of one to come. */
  #nameOf(spec: ActionSpec): string {
    const names = this.#namesOf(spec);
    const { aboutName, exact } = names;
    if (names.name !== undefined && this.#tracks.get(spec.tenant, names.name) !== undefined) return names.name;
    names.name = this.#tracks.get(spec.tenant, exact) === undefined ? this.#nearest(spec, aboutName) : exact;
    return names.name ?? exact;
  }

  #nearest(spec: ActionSpec, aboutName: string): string | undefined {
    let [nearest, least]: [string | undefined, number] = [undefined, noticeableCurve];
    for (const [name, track] of this.#tracks.entries(spec.tenant)) {
      if (track.aboutName !== aboutName) continue;
      const distance = distanceOf(spec.elasticity!, track.stated, allowedUnits(spec.cost[spec.key!]!));
      if (distance <= least) [nearest, least] = [name, distance];
    }
    return nearest;
  }

  #namesOf(spec: ActionSpec): Names {
    let names = this.#names.get(spec);
    if (names === undefined) {
      names = namesOf(this.#aboutOf(spec), spec.elasticity);
      this.#names.set(spec, names);
    }
    return names;
  }

  #aboutOf(spec: ActionSpec): About {
    const { kind, key: resource = "", cost } = spec;
    return { kind, resource, amount: cost[resource] ?? 0, hasUnit: this.#unitOf(spec) !== undefined };
  }

  #noteError(spec: ActionSpec, units: number, seconds: number): void {
    const { elasticity, oneUnitSeconds } = this.expect(spec);
    const expected = elasticity === undefined ? oneUnitSeconds : secondsAt(elasticity, units, oneUnitSeconds);
    const seen = this.#seen.use(spec.tenant, spec.kind, () => ({ spec, at: 0, errors: 0, meanError: 0 }));
    seen.spec = spec;
    seen.at = ++this.#observed;
    const most = Math.max(expected ?? 0, seconds);
    if (expected === undefined || most === 0) return;
    seen.errors++;
    seen.meanError += (Math.abs(expected - seconds) / most - seen.meanError) / Math.min(seen.errors, errorWindow);
  }
}

const finite = (value: number | undefined): number | undefined => (Number.isFinite(value) ? value : undefined);

function namesOf(about: About, elasticity: Elasticity | undefined): Names {
  const type = elasticity?.type;
  const { kind, resource, amount, hasUnit } = about;
  const aboutName = JSON.stringify([kind, resource, amount, hasUnit, type === "seconds", type === "function"]);
  return { aboutName, exact: aboutName + JSON.stringify(elasticity), name: undefined };
}

function trackOf(about: About, stated: Elasticity, state?: LiveCurveState): Track {
  const curve = new LiveCurve(
    (count) => secondsAt(stated, count, 1) ?? Number.NaN,
    about.amount,
    about.hasUnit || stated.type === "seconds",
    state,
  );
  return { about, aboutName: namesOf(about, stated).aboutName, stated, curve, believed: stated, believedScale: 1 };
}

/** The same object for as long as nothing noticeable changes: what waits is not formulated again. */
function believe(track: Track): void {
  const { serialShare, scale } = track.curve;
  const { believed, stated } = track;
  if (serialShare !== undefined) {
    // All that wait are formulated again for each.
    const isNear = believed.type === "amdahl" && Math.abs(believed.serialShare - serialShare) <= noticeableShare;
    if (!isNear || believed === stated) track.believed = { type: "amdahl", serialShare };
  } else if (stated.type === "seconds" && Math.abs(scale / track.believedScale - 1) > noticeableScale) {
    track.believedScale = scale;
    const points = stated.points.map(({ units, seconds }) => ({ units, seconds: seconds * scale }));
    track.believed = { type: "seconds", points };
  }
}

/** The largest difference between the logarithms of their seconds. */
function distanceOf(one: Elasticity, other: Elasticity, units: readonly number[]): number {
  const differences = units.map((count) => {
    const [a, b] = [secondsAt(one, count, 1)!, secondsAt(other, count, 1)!];
    return a === b ? 0 : Math.abs(Math.log(a / b));
  });
  return differences.reduce((most, one) => Math.max(most, one), 0);
}
