import type * as grpc from "@grpc/grpc-js";
import { type DiskBudget, OutputSpool, type Stream } from "./output-spool.ts";

/** Where an action tells how it goes. */
export type ActionEvents = {
  /** False when there is no room for it. */
  give(stream: Stream, chunk: Buffer): boolean;
  tell(event: object): void;
  end(error?: Partial<grpc.ServiceError>): void;
};

/** One call, with which the action ends (GS2). */
export class SpooledCall extends OutputSpool implements ActionEvents {
  readonly #call: grpc.ServerWritableStream<unknown, unknown>;

  constructor(call: grpc.ServerWritableStream<unknown, unknown>, budget: DiskBudget, cancel: (reason: string) => void) {
    super(call, budget);
    this.#call = call;
    call.on("cancelled", () => {
      cancel("its caller went away");
      this.discard();
    });
  }

  override end(error?: Partial<grpc.ServiceError>): void {
    if (error === undefined) super.end();
    else {
      this.discard();
      this.#call.emit("error", error);
    }
  }
}
