/** What servers of NATS keep, asked of them while they may be electing who leads it. */
import { setTimeout as delay } from "node:timers/promises";
import { TreadleError } from "@treadle/contracts";

/** Servers elect who leads a bucket in seconds, after one of them has died; what was asked of that one takes ten to fail. */
const electionMs = 30_000;
const retryMs = 250;

const electing = /temporarily unavailable/;
/** Said for a moment by a server that starts again, too; and for ever by one that keeps nothing. */
const electingOrStarting = /temporarily unavailable|jetstream is not enabled/i;

/** Does it again while servers elect, for some seconds. What it does must be harmless when it is done twice. */
export async function throughElections<T>(act: () => Promise<T>, passing = electingOrStarting): Promise<T> {
  for (const startedMs = performance.now(); ; ) {
    try {
      return await act();
    } catch (error) {
      const cause = error as TreadleError;
      if (!isPassing(cause, passing) || performance.now() - startedMs > electionMs) throw cause;
      await delay(retryMs);
    }
  }
}

const isPassing = (cause: TreadleError, passing: RegExp): boolean =>
  cause.code === "call.timeout" || passing.test(cause.message);

/** Names what a server lacks that cannot open a bucket. */
export async function mustKeep(open: () => Promise<void>): Promise<void> {
  try {
    await throughElections(open, electing);
  } catch (error) {
    const cause = error as TreadleError;
    if (cause.code === "control-plane.refused") throw cause;
    if (isPassing(cause, electing)) {
      throw new TreadleError(
        "control-plane.unreachable",
        `the NATS servers keep nothing just now: ${cause.message}; most of them must be there and have found each other, so try again in a moment`,
        { cause },
      );
    }
    throw new TreadleError(
      "control-plane.refused",
      `the NATS server cannot keep what must survive: ${cause.message}; start it with JetStream ('nats-server -js -a 127.0.0.1'), and no more cluster.nats.replicas than it has servers`,
      { cause },
    );
  }
}
