declare module "parse-prometheus-text-format" {
  type Sample = {
    readonly value?: string;
    readonly labels?: Readonly<Record<string, string>>;
    readonly buckets?: Readonly<Record<string, string>>;
  };
  type Family = {
    readonly name: string;
    readonly help: string;
    readonly type: string;
    readonly metrics: readonly Sample[];
  };
  export default function parse(text: string): Family[];
}
