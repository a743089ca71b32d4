/** Whether a node's agent is there, asked when it keeps something waiting or something of it ended without a word: long before its lease is over. */
import { ask, type ControlPlane, type Member, TreadleError } from "@treadle/contracts";
import { answerPatienceMs, type InquiryVerdict, type Look, NodeInquiry } from "@treadle/core";

const lookMs = 1000;
/** A question that was on its way when its agent ended is lost; the next one is told at once that nobody is there. */
const askAgainMs = 375;
/** A look that ends later than this after its time was one of a process that is starved or was stopped, as the agent may be. */
const lateMs = 250;

/**
 * `isWanted`: false once nobody needs to know. What any question hears counts, however late: with keys, that nobody is there is
 * proven by asking for about as long as a look takes.
 */
export async function inquire(plane: ControlPlane, member: Member, isWanted: () => boolean): Promise<InquiryVerdict> {
  const inquiry = new NodeInquiry(Math.ceil(answerPatienceMs / lookMs));
  let tell: (look: Look) => void = () => {}; // of the look that goes on
  let hasAnswered = false;
  const question = async (): Promise<void> => {
    const askedMs = performance.now();
    const asked = ask(plane, "node", member, "ping", {}, { timeoutMs: answerPatienceMs });
    const heard = await asked.then((): Look["heard"] => "answer", heardBy);
    hasAnswered ||= heard === "answer";
    if (heard === "answer") tell({ heard });
    else if (heard === "nobody") tell({ heard, askedMs, nowMs: performance.now() });
  };
  const asking = setInterval(question, askAgainMs);
  void question();
  try {
    for (;;) {
      const beganMs = performance.now();
      const look = await new Promise<Look>((resolve) => {
        tell = resolve;
        setTimeout(() => resolve({ heard: "nothing" }), lookMs).unref();
      });
      const tookMs = performance.now() - beganMs;
      if (!plane.isConnected || !isWanted()) return "unknown"; // cut off itself, this process hears of nobody
      const verdict = inquiry.looked(hasAnswered ? { heard: "answer" } : look, tookMs < lookMs + lateMs);
      if (verdict !== "look again") return verdict;
    }
  } finally {
    clearInterval(asking);
  }
}

/** A refusal is an answer. */
function heardBy(error: unknown): Look["heard"] {
  const code = error instanceof TreadleError ? error.code : undefined;
  return code === "node.lost" ? "nobody" : code === "call.timeout" ? "nothing" : "answer";
}
