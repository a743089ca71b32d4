import { modelShapeOf } from "../../src/rehearsal/model-shape.ts";
import type { RehearsalSetting } from "../../src/rehearsal/rehearse.ts";
import { chainProfile } from "../synthetic-profile.ts";

export const model = (width: number, layers: number) =>
  modelShapeOf(
    {
      model_type: "qwen3",
      hidden_size: width,
      num_hidden_layers: layers,
      num_attention_heads: width / 128,
      num_key_value_heads: 8,
      head_dim: 128,
      intermediate_size: 3 * width,
      vocab_size: 151936,
    },
    "config.json",
  );

export const traced = chainProfile({
  rollout: { perItem: 0.01 },
  reward: { perItem: 0.001, devices: "none" },
  actor: { perItem: 0.02 },
});

/** A model of 8 G parameters on 64 devices. */
export const setting: RehearsalSetting = {
  device: "h200",
  devices: 64,
  batch: 512,
  samples: 8,
  shape: model(4096, 36),
  lengths: { promptTokens: 512, responseTokens: 4096, spread: 0.8, maxResponseTokens: 32768 },
  components: [
    { name: "rollout", work: "generation" },
    { name: "actor", work: "training" },
  ],
  createdAt: "2026-01-01T00:00:00.000Z",
};
