/** Styles that are computed. The policy of the page forbids style attributes, so they are set one by one. */
import { nothing } from "lit-html";
import { type AttributePart, Directive, directive } from "lit-html/directive.js";

type Styles = Readonly<Record<string, string>>;

class StyleOf extends Directive {
  render(_: Styles): unknown {
    return nothing;
  }

  override update(part: AttributePart, [styles]: [Styles]): unknown {
    const { style } = part.element as HTMLElement;
    for (const [name, value] of Object.entries(styles)) {
      if (style.getPropertyValue(name) !== value) style.setProperty(name, value);
    }
    return nothing;
  }
}

/** `<i data-style=${styleOf({ width: "40%" })}></i>` */
export const styleOf = directive(StyleOf);
