import { defineConfig } from "vitepress";

const page = (text: string, link: string) => ({ text, link });

export default defineConfig({
  title: "Treadle",
  description: "Reinforcement learning from cooperating processes",
  srcExclude: ["node_modules/**"],
  cleanUrls: true,
  markdown: {
    config(md) {
      // What leads to sources leads nowhere on the site: its text stays, as text.
      md.core.ruler.push("links-to-sources", ({ tokens }) => {
        for (const { children } of tokens) {
          let isSource = false;
          for (const token of children ?? []) {
            if (token.type === "link_open") isSource = leavesSite(token.attrGet("href") ?? "");
            if (isSource && /^link_(open|close)$/.test(token.type)) {
              if (token.type === "link_close") isSource = false;
              Object.assign(token, { type: "text", tag: "", content: "", nesting: 0 });
            }
          }
        }
      });
    },
  },
  themeConfig: {
    search: { provider: "local" },
    nav: [
      page("Tutorial", "/tutorial"),
      page("Guides", "/guides/modes-and-planning"),
      page("Reference", "/reference/"),
      page("Design", "/design/"),
    ],
    sidebar: [
      {
        text: "Begin",
        items: [
          page("Tutorial", "/tutorial"),
          page("Your own task", "/guides/your-own-task"),
          page("Your own data", "/guides/your-own-data"),
        ],
      },
      {
        text: "Guides",
        items: [
          page("Modes and planning", "/guides/modes-and-planning"),
          page("Several runs", "/guides/several-runs"),
          page("Many machines", "/guides/many-machines"),
          page("Security", "/guides/security"),
          page("Tools and rewards", "/guides/tools-and-rewards"),
          page("Engines", "/guides/engines"),
          page("Faults and resume", "/guides/faults-and-resume"),
          page("Debugging a hang", "/guides/debugging-a-hang"),
        ],
      },
      {
        text: "Reference",
        items: [
          page("Command line", "/reference/command-line"),
          page("Configuration", "/reference/configuration"),
          page("Errors", "/reference/errors"),
          page("Action service", "/reference/action-service"),
          page("Metrics", "/reference/metrics"),
          page("Licences", "/reference/licences"),
          page("Glossary", "/reference/glossary"),
        ],
      },
      {
        text: "Public API",
        items: [
          "treadle",
          ...["workers", "engines", "learning", "actions", "runner"].map((name) => `treadle/${name}`),
        ].map((name) => page(name, `/reference/api/${name}/`)),
      },
      {
        text: "Design",
        items: [
          page("Channel", "/design/channel"),
          page("Device lock", "/design/device-lock"),
          page("Ranks", "/design/ranks"),
          page("Runner state", "/design/runner-state"),
          page("Device pool", "/design/device-pool"),
          page("Episode router", "/design/episode-router"),
          page("Planner", "/design/planner"),
          page("Actions", "/design/actions"),
          page("Benchmarks", "/benchmarks"),
        ],
      },
    ],
  },
});

/** Pages are at most one folder deep, so a link out of `docs` names a folder of the repository. */
function leavesSite(href: string): boolean {
  return /^(\.\.\/)+(README|packages|python|workflows|test|deploy|CONTRIBUTING)/.test(href);
}
