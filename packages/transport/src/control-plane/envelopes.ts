/**
 * Commands and their answers between processes that have no keys of their own: nobody vouches for who sends them, and nobody
 * but the two reads them, a run's token among it.
 *
 * EN1 who only listens learns neither what is asked nor what is answered (SB1).
 * EN2 an answer counts only for the command that it answers, and only from the member that was asked.
 */
import { z } from "zod";
import { readJson } from "./bounded-json.ts";
import { SealedBox, SealKey, untrusted } from "./sealed-box.ts";
import type { Asked, Sealer } from "./trust.ts";

const Sealed = z.object({ from: SealKey, id: z.uuid(), box: z.base64() });
const Answered = z.object({ id: z.uuid(), answer: z.string() });

export class Envelopes {
  readonly #box = new SealedBox();

  /** By which this process, and no other, is written to. */
  get sealKey(): string {
    return this.#box.publicKey;
  }

  /** A command on its way to a member with this key, and how its answer is read. Throws `control-plane.untrusted`. */
  ask(text: string, memberKey: string): Asked {
    const [from, id] = [this.sealKey, crypto.randomUUID()];
    return {
      text: JSON.stringify({ from, id, box: this.#box.seal(text, memberKey) } satisfies z.infer<typeof Sealed>),
      open: (answer) => {
        const opened = readJson(Answered, this.#box.openAnswer(answer, memberKey));
        if (opened?.id !== id) throw untrusted("an answer is that to another command"); // EN2
        return opened.answer;
      },
    };
  }

  /** Throws `control-plane.untrusted`. */
  receive(data: string): { readonly text: string; readonly seal: Sealer } {
    const command = readJson(Sealed, data);
    if (command === undefined)
      throw untrusted("a command is not sealed for this process; use the same version of Treadle everywhere");
    const { from, id, box } = command;
    const text = this.#box.open(box, from);
    const seal = (answer: string) =>
      this.#box.sealAnswer(JSON.stringify({ id, answer } satisfies z.infer<typeof Answered>), from);
    return { text, seal };
  }
}
