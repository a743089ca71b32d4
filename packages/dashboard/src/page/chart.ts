/** `<t-chart>`: curves over steps, a thin hand over uPlot with the page's colours, and labels that tell ticks apart. */
import uPlot from "uplot";
import { axisLabels } from "../view/axis.ts";
import { significant } from "../view/format.ts";

export type ChartSeries = {
  readonly name: string;
  readonly colour: string;
  readonly values: readonly (number | null)[];
  readonly dash?: boolean;
};
export type ChartSpec = {
  readonly xs: readonly number[];
  readonly xName: string;
  readonly series: readonly ChartSeries[];
  readonly percent?: boolean | undefined;
  readonly unit?: string | undefined;
  readonly fromZero?: boolean | undefined;
};

const colourOf = (element: Element, name: string): string =>
  name.startsWith("--") ? getComputedStyle(element).getPropertyValue(name).trim() : name;

class Chart extends HTMLElement {
  #spec: ChartSpec | undefined;
  #plot: uPlot | undefined;
  #shape = "";
  #observer: ResizeObserver | undefined;
  /** called with what is under the cursor, for whoever shows it */
  onread: ((text: string) => void) | undefined;

  set spec(spec: ChartSpec) {
    this.#spec = spec;
    this.#draw();
  }

  connectedCallback(): void {
    this.#observer = new ResizeObserver(() => this.#plot?.setSize(this.#size));
    this.#observer.observe(this);
    document.addEventListener("themechange", this.#restyle);
    this.#draw();
  }

  disconnectedCallback(): void {
    this.#observer?.disconnect();
    document.removeEventListener("themechange", this.#restyle);
    this.#plot?.destroy();
    this.#plot = undefined;
    this.#shape = "";
  }

  readonly #restyle = (): void => {
    this.#shape = "";
    this.#draw();
  };

  get #size(): { width: number; height: number } {
    return { width: Math.max(120, this.clientWidth), height: Math.max(80, this.clientHeight) };
  }

  #draw(): void {
    const spec = this.#spec;
    if (spec === undefined || !this.isConnected) return;
    const data = [spec.xs, ...spec.series.map(({ values }) => values)] as unknown as uPlot.AlignedData;
    const shape = JSON.stringify([spec.series.map(({ name, colour }) => [name, colour]), spec.percent, spec.unit]);
    if (shape === this.#shape && this.#plot) {
      this.#plot.setData(data);
      return;
    }
    this.#shape = shape;
    this.#plot?.destroy();
    this.#plot = new uPlot(this.#options(spec), data, this);
    // A chart is a picture to those who cannot see it.
    this.setAttribute("role", "img");
    this.setAttribute("aria-label", spec.series.map(({ name }) => name).join(", "));
  }

  #options(spec: ChartSpec): uPlot.Options {
    const text = colourOf(this, "--dim");
    const grid = { stroke: colourOf(this, "--grid"), width: 1 };
    const axis = { stroke: text, grid, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    const few = spec.xs.length <= 60;
    return {
      ...this.#size,
      padding: [8, 10, 0, 0],
      legend: { show: false },
      cursor: { y: false, sync: { key: "steps" }, points: { size: 6 }, drag: { x: true, y: false } },
      scales: {
        x: { time: false },
        y: spec.fromZero ? { range: (_, __, high) => [0, high > 0 ? high * 1.08 : 1] } : {},
      },
      axes: [
        {
          ...axis,
          size: 26,
          gap: 4,
          incrs: spec.xName === "step" ? wholeNumbers : undefined,
          values: (_, ticks) => axisLabels(ticks),
        } as uPlot.Axis,
        { ...axis, size: 56, gap: 5, values: (_, ticks) => axisLabels(ticks, spec) } as uPlot.Axis,
      ],
      series: [
        {},
        ...spec.series.map(
          ({ name, colour, dash }): uPlot.Series => ({
            label: name,
            stroke: colourOf(this, colour),
            width: 1.8,
            spanGaps: true,
            points: { show: few, size: 4 },
            ...(dash ? { dash: [6, 4] } : {}),
          }),
        ),
      ],
      hooks: { setCursor: [(plot) => this.onread?.(this.#readingOf(plot, spec))] },
    };
  }

  #readingOf(plot: uPlot, spec: ChartSpec): string {
    const { idx } = plot.cursor;
    if (idx === null || idx === undefined) return "";
    const show = (value: number | null | undefined) =>
      value === null || value === undefined
        ? "–"
        : spec.percent
          ? `${(value * 100).toFixed(1)} %`
          : `${significant(value)}${spec.unit ? ` ${spec.unit}` : ""}`;
    const values = spec.series.map(({ name, values: all }) =>
      spec.series.length > 1 ? `${name} ${show(all[idx])}` : show(all[idx]),
    );
    return `${spec.xName} ${spec.xs[idx]}: ${values.join(", ")}`;
  }
}

const wholeNumbers = [
  1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000,
];

customElements.define("t-chart", Chart);
