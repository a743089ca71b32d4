/**
 * The live view: draws frames over one another on a terminal.
 *
 * Owner of: the terminal's last lines while it is open, and one timer. What is drawn is its caller's.
 * LV1 at most one frame in `frameMs`, so a burst of events costs one drawing.
 * LV2 the cursor is shown again however the process ends, a signal or an uncaught error included.
 */
import { createLogUpdate } from "log-update";
import type { Frame } from "./live-frame.ts";

export interface LiveView {
  /** Says that there is something new to draw. */
  update(): void;
  /** Draws the last frame, leaves it on the screen and gives the terminal back. */
  close(): void;
}

const frameMs = 100;
/** the clock of the header moves even when nothing happens */
const idleFrameMs = 1000;
const showCursor = "\u001b[?25h";

export function openLiveView(
  stream: NodeJS.WriteStream,
  render: (frame: Frame) => readonly string[],
  now = Date.now,
): LiveView {
  const draw = createLogUpdate(stream, { showCursor: false });
  let isDirty = true;
  let lastDrawnMs = Number.NEGATIVE_INFINITY;
  let isOpen = true;
  const restore = () => {
    stream.write(showCursor);
  };

  const drawFrame = () => {
    const nowMs = now();
    if (!isDirty && nowMs - lastDrawnMs < idleFrameMs) return;
    isDirty = false;
    lastDrawnMs = nowMs;
    const { columns = 80, rows = 24 } = stream;
    draw(render({ columns: columns - 1, rows: Math.max(3, rows - 1), nowMs, colour: true }).join("\n"));
  };
  const timer = setInterval(drawFrame, frameMs); // LV1
  timer.unref();
  const onResize = () => {
    isDirty = true;
  };
  stream.on("resize", onResize);
  process.on("exit", restore); // LV2
  drawFrame();

  return {
    update() {
      isDirty = true;
    },
    close() {
      if (!isOpen) return;
      isOpen = false;
      clearInterval(timer);
      stream.off("resize", onResize);
      isDirty = true;
      drawFrame();
      draw.done();
      process.off("exit", restore);
      restore();
    },
  };
}
