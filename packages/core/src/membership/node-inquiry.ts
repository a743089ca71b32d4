/**
 * What the looks at a node's agent say of it, one after another. A question may be lost on its way, and an agent that has just
 * lost its server serves nobody for a moment, so no single look decides.
 *
 * - MB4 an agent hangs when it left every question of so many looks in a row without an answer, in all of which this side could
 *   have heard one; it has gone when for so long nobody served its commands. Whatever it says, it is there.
 */
export type Look =
  | { readonly heard: "answer" | "nothing" }
  /** nobody serves its commands: nobody did from when that was asked until now */
  | { readonly heard: "nobody"; readonly askedMs: number; readonly nowMs: number };

export type InquiryVerdict =
  | "there"
  | "hangs"
  | "gone"
  /** this side heard nobody, or nobody needs to know any more */
  | "unknown";

/** An agent that has just lost its server finds another one within about half a second. */
const goneMs = 700;

export class NodeInquiry {
  readonly #silentLooks: number;
  #numSilent = 0;
  /** since when nobody has served its commands */
  #nobodySinceMs: number | undefined;

  /** `silentLooks`: after so many without an answer it hangs. */
  constructor(silentLooks: number) {
    this.#silentLooks = silentLooks;
  }

  /** `couldHear`: false when this process did not run meanwhile, so that an answer may lie unread. */
  looked(look: Look, couldHear: boolean): "look again" | Exclude<InquiryVerdict, "unknown"> {
    if (look.heard === "answer") return "there";
    if (!couldHear) return "look again";
    if (look.heard === "nobody") {
      this.#numSilent = 0;
      this.#nobodySinceMs ??= look.askedMs;
      return look.nowMs - this.#nobodySinceMs >= goneMs ? "gone" : "look again";
    }
    this.#nobodySinceMs = undefined;
    return ++this.#numSilent >= this.#silentLooks ? "hangs" : "look again";
  }
}
