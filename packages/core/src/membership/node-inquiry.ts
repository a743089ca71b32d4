/**
 * What the looks at a node's agent say of it, one after another. A question may be lost on its way, and an agent that has just
 * lost its server serves nobody for a moment, so no single look decides.
 *
 * - MB4 an agent hangs when it left every question of so many looks in a row without an answer, in all of which this side could
 *   have heard one; it has gone when nobody served its commands in so many. Whatever it says, it is there.
 */
export type Heard =
  | "answer"
  /** nobody serves its commands */
  | "nobody"
  | "nothing";

export type InquiryVerdict =
  | "there"
  | "hangs"
  | "gone"
  /** this side heard nobody, or nobody needs to know any more */
  | "unknown";

const nobodyLooks = 3;

export class NodeInquiry {
  readonly #silentLooks: number;
  #numSilent = 0;
  #numNobody = 0;

  /** `silentLooks`: after so many without an answer it hangs. */
  constructor(silentLooks: number) {
    this.#silentLooks = silentLooks;
  }

  /** `couldHear`: false when this process did not run meanwhile, so that an answer may lie unread. */
  looked(heard: Heard, couldHear: boolean): "look again" | Exclude<InquiryVerdict, "unknown"> {
    if (heard === "answer") return "there";
    if (!couldHear) return "look again";
    if (heard === "nobody") {
      this.#numSilent = 0;
      return ++this.#numNobody >= nobodyLooks ? "gone" : "look again";
    }
    this.#numNobody = 0;
    return ++this.#numSilent >= this.#silentLooks ? "hangs" : "look again";
  }
}
