/**
 * Handles one input after the other, whoever drives `RunnerState`.
 *
 * - RL1 an input that arrives while effects are acted on is handled after them, in order of arrival.
 */
export function inTurn<Input>(handle: (input: Input) => void): (input: Input) => void {
  const arrived: Input[] = [];
  let isHandling = false;
  /** Throws what the handling of this input throws; of one that waits, whoever is being handled throws it. */
  return (input) => {
    arrived.push(input);
    if (isHandling) return;
    isHandling = true;
    try {
      while (arrived.length > 0) handle(arrived.shift() as Input);
    } finally {
      isHandling = false;
    }
  };
}
