/** The colours of every page, as CSS variables: `--c0` to `--c7` are components', the named ones what time is spent on. */

export const lightPalette = `color-scheme: light;
  --back: #f6f7f9; --card: #ffffff; --panel: #f5f6f8; --line: #e1e5ea; --grid: #eceff3; --text: #1d2530; --dim: #5f6b79; --stripe: #fafbfc;
  --accent: #2f6fd0; --good: #2d8a55; --warn: #a66a00; --bad: #c2353b;
  --c0: #2f6fd0; --c1: #d9772b; --c2: #2d9a5f; --c3: #a04fb5; --c4: #c2413f; --c5: #1a93a8; --c6: #8a7a1f; --c7: #6b7280;
  --compute: #2f6fd0; --transfer: #1a9c8c; --onload: #7d55c7; --offload: #b565b5; --lock-wait: #e2a21b; --channel-wait: #b39ad6;
  --call: #c3cfe0; --step: #d8dee6; --evaluation: #bcdcb9; --checkpoint: #9a6b43; --failure: #d43a3a; --episode: #7fa6e3; --idle: #e6e9ee;`;

export const darkPalette = `color-scheme: dark;
  --back: #12161b; --card: #1a2027; --panel: #1b2129; --line: #2e3742; --grid: #222a33; --text: #e4e9ef; --dim: #93a0ae; --stripe: #171c23;
  --accent: #5b97f0; --good: #4fbf82; --warn: #eab545; --bad: #ef6f6f;
  --c0: #5b97f0; --c1: #f0964f; --c2: #4fbf82; --c3: #c47ad8; --c4: #ea6b68; --c5: #3fb8cd; --c6: #bfae45; --c7: #9aa3ae;
  --compute: #5b97f0; --transfer: #36bfae; --onload: #a685ec; --offload: #d08ad0; --lock-wait: #eab545; --channel-wait: #8a73b5;
  --call: #3a4a60; --step: #2d3642; --evaluation: #3c6b42; --checkpoint: #c09066; --failure: #ef5f5f; --episode: #3f6cb4; --idle: #2a323c;`;

export const fonts = 'system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif';
