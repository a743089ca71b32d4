import { type BenchRow, row } from "../row.ts";
import { benchTorchMismatch } from "./mismatch.ts";
import { lacksTorch } from "./python-process.ts";
import { benchTorchRollout } from "./rollout.ts";
import { benchTorchStepTime } from "./step-time.ts";
import { benchTorchTraining } from "./training.ts";

/** What runs cost beyond the engine on PyTorch that computes them, and beyond PyTorch. */
export async function* benchTorch(): AsyncIterable<BenchRow> {
  const reason = await lacksTorch();
  if (reason) {
    yield row({ name: "engines on PyTorch", value: null, unit: "tokens/s", notMeasured: reason });
    return;
  }
  yield* benchTorchRollout();
  yield* benchTorchTraining();
  yield* benchTorchStepTime();
  yield await benchTorchMismatch();
}
