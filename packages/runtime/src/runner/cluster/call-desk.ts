/**
 * The calls of a run on their way: arguments out, results back. Which of them is sent when, and when it counts as ended,
 * is decided by `RunnerState`; here is what they carry.
 *
 * Owner of: the arguments of calls as long as somebody may need them again, the replies that wait for other ranks, and the
 * promises of the workflow.
 */
import {
  type CallReply,
  type CallRequest,
  fromErrorRecord,
  GroupRef,
  type ObservedCall,
  type Peer,
  type RequestOf,
  type RunProtocol,
  type SavedStateMessage,
  type StateFile,
  savingMethod,
  type TellVerb,
  TreadleError,
  toErrorRecord,
} from "@treadle/contracts";
import type { ChannelEnd, Incarnation, RunnerEffect, SavePace } from "@treadle/core";
import { Canceller } from "@treadle/transport";
import type { z } from "zod";
import { mapArguments } from "../../author/group/call-arguments.ts";
import { CallHandle, type RankReply } from "../../author/group/handle.ts";
import type { RunnerLoop } from "../loop/runner-loop.ts";
import type { Component } from "../placement/component.ts";

export type EncodedCall = {
  readonly component: Component;
  readonly ranks: readonly number[];
  readonly method: string;
  readonly args: readonly unknown[];
  readonly ends: readonly ChannelEnd[];
  readonly step: number | undefined;
  /** replies say what the call cost */
  readonly observe?: boolean | undefined;
};

export type CallDeskPorts = {
  readonly loop: RunnerLoop;
  readonly timeoutMs: number;
  /** the link of a worker's present process */
  readonly peerOf: (worker: string) => Peer | undefined;
  /** where the state after a call is saved, for classes that save */
  readonly stateFolder: (component: string, sequence: number) => string;
  /** the files of all its ranks are written: puts the state in its place */
  readonly completeState: (folder: string, component: string, ranks: readonly StateFile[][]) => Promise<void>;
  /** where states are saved beside the steps that follow: after which calls */
  readonly pace: SavePace | undefined;
  readonly onObserved: (call: ObservedCall) => void;
};

type RankCall = {
  readonly sequence: number;
  readonly index: number;
  reply: CallReply | undefined;
  readonly resolve: (reply: RankReply<unknown>) => void;
  readonly reject: (error: unknown) => void;
};
type Saving = {
  readonly component: Component;
  readonly step: number | undefined;
  /** the folder that the state after the call is to be in */
  readonly saveIn: string;
  /** what ranks have saved, each as its present process */
  readonly parts: Map<number, { readonly incarnation: number; readonly files: StateFile[] }>;
};
type SentCall = EncodedCall & Saving & { readonly canceller: Canceller; readonly isSaved: boolean };
type SavedState = z.infer<typeof SavedStateMessage>;

export class CallDesk {
  readonly #ports: CallDeskPorts;
  readonly #sent = new Map<number, SentCall>();
  readonly #byCall = new Map<string, RankCall>();
  #sequence = 0;
  /** states are put in their places in the order in which their calls replied */
  #completing: Promise<unknown> = Promise.resolve();
  /** states that are being written beside the steps that follow, by the call after which they are */
  readonly #saving = new Map<number, Saving>();
  readonly #written: (() => void)[] = [];
  readonly #late = new Map<string, NodeJS.Timeout>();

  constructor(ports: CallDeskPorts) {
    this.#ports = ports;
    const { loop } = ports;
    loop.on("send", (effect) => this.#send(effect));
    loop.on("replay", (effect) => void this.#replay(effect));
    loop.on("give-up", ({ worker, call }) => tell(ports.peerOf(worker), "give-up", { call }));
    loop.on("settle", ({ call }) => this.#settled(call));
    loop.on("settle-failed", ({ call, error }) => {
      this.#endSaving(Number(call.slice(0, call.indexOf("/"))));
      this.#take(call)?.reject(error);
    });
    loop.on("forget", ({ sequence }) => this.#sent.delete(sequence));
  }

  call(encoded: EncodedCall): CallHandle<unknown> {
    const { component, ranks, method, ends, step } = encoded;
    const sequence = this.#nextSequence();
    const canceller = new Canceller();
    const { saves, savesOn } = component.workerClass;
    const hasSaver = savesOn === "every-rank" || ranks.includes(0);
    const changes = hasSaver && (saves.includes(method) || method === savingMethod);
    const { pace, stateFolder } = this.#ports;
    const isSaved = changes && (pace === undefined || pace.isDue(component.name, step));
    const saving: Saving = { component, step, saveIn: stateFolder(component.name, sequence), parts: new Map() };
    this.#sent.set(sequence, { ...encoded, ...saving, canceller, isSaved });
    const replies = ranks.map(
      (index) =>
        new Promise<RankReply<unknown>>((resolve, reject) => {
          this.#byCall.set(`${sequence}/${index}`, { sequence, index, reply: undefined, resolve, reject });
        }),
    );
    this.#ports.loop.feed({
      type: "call",
      sequence,
      component: component.name,
      method,
      ranks,
      ends,
      step,
      ...(pace && changes ? { changes } : {}),
    });
    const cancel = (reason: TreadleError) => canceller.abort(reason);
    return new CallHandle(`${component.name}.${method}`, ranks, replies, cancel);
  }

  #send({ worker, incarnation, call }: Extract<RunnerEffect, { type: "send" }>): void {
    const { sequence, index } = this.#byCall.get(call) as RankCall;
    const sent = this.#sent.get(sequence) as SentCall;
    const { loop, timeoutMs, peerOf, pace } = this.#ports;
    if (sent.isSaved && pace !== undefined) this.#saving.set(sequence, sent);
    const request = this.#request(sent, sequence, index);
    const signal = sent.canceller;
    // Its end is on the way where it has no link any more.
    const reply = peerOf(worker)?.request("call", request, { signal, timeoutMs });
    const threw = (error: unknown) => {
      const told = isUnfit(error) ? noReply(error, worker, sent.method) : ofCall(error, worker, sent.method);
      loop.feed({ type: "threw", worker, incarnation, call, error: told });
    };
    const returned = (reply: CallReply, savedPath?: string) => {
      const rankCall = this.#byCall.get(call);
      if (!rankCall) return;
      rankCall.reply = reply;
      loop.feed({ type: "returned", worker, incarnation, call, savedPath });
    };
    reply?.then((reply) => {
      if (request.saveIn === undefined) return returned(reply);
      if (pace === undefined) {
        this.#partSaved(sent, index, incarnation, reply.saved ?? []).then((part) => returned(reply, part?.path), threw);
        return;
      }
      if (request.savesLater) {
        this.#expect(sequence, worker);
        return returned(reply);
      }
      const from = { worker, incarnation };
      this.#partSaved(sent, index, incarnation, reply.saved ?? []).then((part) => {
        returned(reply);
        if (part) this.#durable(from, sequence, sent, part.path); // before the workflow goes on
      }, threw);
    }, threw);
  }

  /** What a process has saved after its reply, or why not, where states are saved beside the steps that follow. */
  saved(from: Incarnation, { sequence, files, failure }: SavedState): void {
    const { loop } = this.#ports;
    clearTimeout(this.#late.get(`${sequence} ${from.worker}`));
    const saving = this.#saving.get(sequence);
    if (saving === undefined) return;
    if (failure !== undefined) {
      loop.feed({ type: "fail", error: fromErrorRecord(failure) });
      return;
    }
    const index = Number(from.worker.slice(from.worker.lastIndexOf("/") + 1));
    this.#partSaved(saving, index, from.incarnation, files ?? []).then(
      (part) => {
        if (part) this.#durable(from, sequence, saving, part.path);
      },
      (error: unknown) => loop.feed({ type: "fail", error }),
    );
  }

  /** Resolves when no state is being written. */
  async written(): Promise<void> {
    if (this.#saving.size > 0) await new Promise<void>((resolve) => this.#written.push(resolve));
  }

  #durable(from: Incarnation, sequence: number, { component, step }: Saving, path: string | undefined): void {
    this.#ports.loop.feed({ type: "durable", ...from, component: component.name, sequence, step, path });
    this.#endSaving(sequence);
  }

  #endSaving(sequence: number): void {
    this.#saving.delete(sequence);
    if (this.#saving.size === 0) for (const resolve of this.#written.splice(0)) resolve();
  }

  /** Resolves when nothing of it writes any more. */
  async close(): Promise<void> {
    for (const timer of this.#late.values()) clearTimeout(timer);
    await this.#completing;
  }

  /** S3: a state that is not on the disk in time fails the run with whose it is. */
  #expect(sequence: number, worker: string): void {
    const { loop, timeoutMs } = this.#ports;
    const message = `the state of '${worker}' is not on the disk ${timeoutMs} ms after its call (supervision.callTimeoutMs); see whether its disk is slow, or save it less often (checkpoints.stateEverySteps)`;
    const late = () => {
      if (!this.#saving.has(sequence)) return; // the news of it came before the reply
      loop.feed({ type: "fail", error: new TreadleError("call.timeout", message, { origin: { worker } }) });
    };
    this.#late.set(`${sequence} ${worker}`, setTimeout(late, timeoutMs).unref());
  }

  /** In the order of the replies. Undefined until the last part is there, with which the state is whole (WH4). */
  #partSaved(
    { component, parts, saveIn }: Saving,
    index: number,
    incarnation: number,
    files: StateFile[],
  ): Promise<{ readonly path: string | undefined } | undefined> {
    parts.set(index, { incarnation, files });
    const whole = this.#completing.then(async () => {
      const { loop, completeState } = this.#ports;
      const saving = loop.state.ranksOf(component.name).filter((rank) => doesSave(component, rank.index));
      const present = saving.flatMap((rank) => {
        const part = parts.get(rank.index);
        return part?.incarnation === rank.incarnation ? [part.files] : [];
      });
      if (present.length < saving.length) return undefined;
      parts.clear(); // the replies that wait behind this one have their parts in it
      if (present.every((each) => each.length === 0)) return { path: undefined };
      // Where it was told to, whatever it says: paths are the runner's.
      await completeState(saveIn, component.name, present);
      return { path: saveIn };
    });
    this.#completing = whole.catch(() => {});
    return whole;
  }

  /** Repeats a call on a restarted process. */
  async #replay({ worker, incarnation, call, sequence, of }: Extract<RunnerEffect, { type: "replay" }>): Promise<void> {
    const { loop, peerOf } = this.#ports;
    const index = Number(call.slice(call.indexOf("/") + 1));
    const sent = this.#sent.get(of) as SentCall;
    const args = sent.args.map((arg) => mapArguments(arg, (value) => this.#resize(value)));
    try {
      await peerOf(worker)?.request("call", this.#request({ ...sent, args, isSaved: false }, sequence, index));
      loop.feed({ type: "replayed", worker, incarnation, call });
    } catch (error) {
      loop.feed({ type: "replayed", worker, incarnation, call, failure: toErrorRecord(error) });
    }
  }

  /** A group as it is now: since the call was made the plan may have changed. */
  #resize(value: object): unknown {
    if (!("$group" in value)) return undefined;
    const group = GroupRef.parse(value);
    const size = this.#ports.loop.state.ranksOf(group.$group).length;
    return { ...group, size, ...(group.ranks ? { ranks: group.ranks.filter((rank) => rank < size) } : {}) };
  }

  #request(sent: SentCall, sequence: number, index: number): CallRequest {
    const { component, method, args, step, observe, isSaved, saveIn } = sent;
    const request: CallRequest = { call: `${sequence}/${index}`, sequence, method, args: [...args] };
    if (step !== undefined) request.step = step;
    if (observe) request.observe = observe;
    if (isSaved && doesSave(component, index)) {
      request.saveIn = saveIn;
      if (this.#ports.pace !== undefined && step !== undefined) request.savesLater = true;
    }
    return request;
  }

  #settled(call: string): void {
    const each = this.#take(call);
    if (!each) return;
    const { component, method, step } = this.#sent.get(each.sequence) as SentCall;
    const reply = each.reply as CallReply;
    const { durationMs, observation } = reply;
    if (observation) {
      const { index: rank, sequence } = each;
      const called = { component: component.name, method, rank, sequence, step };
      this.#ports.onObserved({ ...called, durationMs, ...observation });
    }
    each.resolve(reply);
  }

  #take(call: string): RankCall | undefined {
    const found = this.#byCall.get(call);
    this.#byCall.delete(call);
    return found;
  }

  /** Numbers that replays have taken meanwhile are left out. */
  #nextSequence(): number {
    this.#sequence = Math.max(this.#sequence, this.#ports.loop.state.lastSequence) + 1;
    return this.#sequence;
  }
}

const doesSave = ({ workerClass }: Component, index: number): boolean =>
  index === 0 || workerClass.savesOn === "every-rank";

/** Says something to a process whose link may just have ended. */
export function tell<V extends TellVerb<RunProtocol>>(
  peer: Peer | undefined,
  verb: V,
  body: RequestOf<RunProtocol, V>,
): void {
  try {
    peer?.notify(verb, body);
  } catch {
    // its exit is on the way
  }
}

const isUnfit = (error: unknown): error is TreadleError =>
  error instanceof TreadleError && error.code === "link.protocol" && error.details.verb === "call";

/** A value that cannot leave its process, with the call whose argument or result holds it. */
function ofCall(error: unknown, worker: string, method: string): unknown {
  if (!(error instanceof TreadleError) || error.code !== "link.unsupported-value") return error;
  const { what, remedy, path } = error.details;
  if (typeof path !== "string") return error;
  const [part, ...fields] = path.split(".").slice(path.startsWith("2.") || path.startsWith("3.") ? 1 : 0);
  const holder =
    part === "args"
      ? `argument ${Number(fields.shift()) + 1} of '${method}' for '${worker}'`
      : `what '${worker}' returned from '${method}'`;
  const where = fields.length === 0 ? "" : ` in '${fields.join(".")}'`;
  const text = `${holder} holds ${what}${where}, which cannot leave its process; ${remedy}`;
  return new TreadleError(error.code, text, {
    details: { ...error.details },
    cause: error.cause,
    origin: { worker, method },
  });
}

/** The same, of the worker and its method. */
function noReply(error: TreadleError, worker: string, method: string): TreadleError {
  const why = error.message.slice(error.message.indexOf("with what is no reply"));
  return new TreadleError("link.protocol", `worker '${worker}' answered '${method}' ${why}`, {
    cause: error,
    origin: { worker, method },
  });
}
