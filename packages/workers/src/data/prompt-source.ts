import type { Prompt } from "@treadle/contracts";
import type { Drawn, Position } from "@treadle/runtime";

/** Prompts of a round, by its number from 1 alone; or from a position on, which the draw before has left. */
export type Draw = (
  round: number,
  count: number,
  position: Position | undefined,
) => readonly Prompt[] | Drawn<Prompt> | Promise<readonly Prompt[] | Drawn<Prompt>>;

/** What a workflow asks of its problems, whatever draws them: a task, files or a module of the project. */
export interface PromptSource {
  readonly problemsAt: Draw;
  heldOut(count: number): Prompt[] | Promise<Prompt[]>;
  validation(count: number): Prompt[] | Promise<Prompt[]>;
  demonstrated(count: number): Prompt[] | Promise<Prompt[]>;
}
