/** Whether a node's agent is there, asked when it keeps something waiting or something of it ended without a word: long before its lease is over. */
import { ask, type ControlPlane, type Member, TreadleError } from "@treadle/contracts";
import { answerPatienceMs, type Heard, type InquiryVerdict, NodeInquiry } from "@treadle/core";

const lookMs = 1000;
/** A look that ends later than this after its time was one of a process that is starved or was stopped, as the agent may be. */
const lateMs = 250;
/**
 * From one question to the next. One that was on its way when its agent ended is lost; the next one is told at once that nobody is
 * there. An agent that has just lost its server serves nobody for a moment, and finds another one within about half a second.
 */
const askAgainMs = 350;

/**
 * `isWanted`: false once nobody needs to know. What any question hears counts, however late: with keys, that nobody is there takes
 * about as long to prove as a look takes.
 */
export async function inquire(plane: ControlPlane, member: Member, isWanted: () => boolean): Promise<InquiryVerdict> {
  const inquiry = new NodeInquiry(Math.ceil(answerPatienceMs / lookMs));
  let hear: (heard: Heard) => void = () => {}; // of the look that goes on
  let hasAnswered = false;
  const question = async (): Promise<void> => {
    const asked = ask(plane, "node", member, "ping", {}, { timeoutMs: answerPatienceMs });
    const heard = await asked.then((): Heard => "answer", heardBy);
    hasAnswered ||= heard === "answer";
    if (heard !== "nothing") hear(heard);
  };
  const asking = setInterval(question, askAgainMs);
  void question();
  try {
    for (;;) {
      const beganMs = performance.now();
      const heard = await new Promise<Heard>((resolve) => {
        hear = resolve;
        setTimeout(() => resolve("nothing"), lookMs).unref();
      });
      const tookMs = performance.now() - beganMs;
      if (!plane.isConnected || !isWanted()) return "unknown"; // cut off itself, this process hears of nobody
      const verdict = inquiry.looked(hasAnswered ? "answer" : heard, tookMs < lookMs + lateMs);
      if (verdict !== "look again") return verdict;
    }
  } finally {
    clearInterval(asking);
  }
}

/** A refusal is an answer. */
function heardBy(error: unknown): Heard {
  const code = error instanceof TreadleError ? error.code : undefined;
  return code === "node.lost" ? "nobody" : code === "call.timeout" ? "nothing" : "answer";
}
