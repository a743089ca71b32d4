/** Property tests draw by `TREADLE_SEED`, as all that tests draw; `random` is another seed in each run (`vitest.config.ts`). */
import fc from "fast-check";

fc.configureGlobal({ seed: Number(process.env.TREADLE_SEED) });
