/** What is said of a span beside the pointer: at once what its row has, and its attributes when they have come. */
import { formatSeconds } from "../view/format.ts";
import { categoryWords } from "../view/lanes.ts";
import { type Category, categories, type SpanTable } from "../view/span-table.ts";

type Fact = readonly [name: string, value: string];

export function showSpan(
  tip: HTMLElement,
  table: SpanTable,
  span: number,
  attributesOf: (row: number) => Promise<Record<string, unknown>>,
  event: PointerEvent,
): void {
  tip.hidden = false;
  const facts: Fact[] = [
    ["worker", table.workers[table.worker[span] as number] as string],
    ["what", categoryWords[categories[table.category[span] as number] as Category]],
    ["starts", formatSeconds((table.start[span] as number) / 1000)],
  ];
  if ((table.duration[span] as number) > 0) facts.push(["lasts", formatMs(table.duration[span] as number)]);
  if ((table.step[span] as number) >= 0) facts.push(["step", String(table.step[span])]);
  const devices = table.devicesOf(span);
  if (devices.length > 0) facts.push(["devices", devices.join(" ")]);
  const title = table.names[table.name[span] as number] as string;
  fill(tip, title, facts, event);
  void attributesOf(span).then(
    (attributes) => {
      if (tip.hidden || tip.dataset["span"] !== String(span)) return;
      const more = Object.entries(attributes).map(([name, value]): Fact => [name, String(value)]);
      if (more.length > 0) fill(tip, title, [...facts, ...more], event);
    },
    () => {},
  );
  tip.dataset["span"] = String(span);
}

function fill(tip: HTMLElement, title: string, facts: readonly Fact[], { clientX, clientY }: PointerEvent): void {
  const heading = document.createElement("b");
  heading.textContent = title;
  const table = document.createElement("table");
  for (const [name, value] of facts) {
    const line = table.insertRow();
    line.insertCell().textContent = name;
    line.insertCell().textContent = value;
  }
  tip.replaceChildren(heading, table);
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(clientX + 14, innerWidth - box.width - 8))}px`;
  tip.style.top = `${Math.max(4, Math.min(clientY + 14, innerHeight - box.height - 8))}px`;
}

const formatMs = (ms: number): string =>
  ms < 1 ? `${Math.round(ms * 1000)} µs` : ms < 100 ? `${ms.toFixed(2)} ms` : formatSeconds(ms / 1000);
