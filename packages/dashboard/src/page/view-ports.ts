import type { TemplateResult } from "lit-html";
import type { Connection } from "./api.ts";

/** One page of the page: what an address shows. */
export type View = {
  readonly title: string;
  render(): TemplateResult;
  /** what keys do here, beside those of the browser */
  onKey?(event: KeyboardEvent): boolean;
  close(): void;
};

export type ViewPorts = {
  /** says that there is something new to draw */
  readonly redraw: () => void;
  readonly onConnection: (connection: Connection) => void;
};
