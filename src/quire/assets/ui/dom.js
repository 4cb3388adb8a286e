/**
 * Making and changing elements. Whatever a program has said is set as text and never parsed: no
 * other module writes markup, and the page's policy refuses it too.
 */

const SVG = "http://www.w3.org/2000/svg";

/**
 * An element. A property with a dash is set as an attribute, any other one as a property.
 *
 * @param {string} tag
 * @param {Record<string, unknown>} [properties]
 * @param {...(Node | string)} children
 * @returns {HTMLElement}
 */
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.includes("-") || name === "role") {
      made.setAttribute(name, String(value));
    } else {
      made[name] = value;
    }
  }
  made.append(...children);
  return made;
}

/**
 * An element of a drawing.
 *
 * @param {string} tag
 * @param {Record<string, string | number>} [attributes]
 * @param {...Node} children
 * @returns {SVGElement}
 */
export function drawing(tag, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) {
    made.setAttribute(name, String(value));
  }
  made.append(...children);
  return made;
}

/** Set a text, without touching the page if it stands there already. */
export function setText(target, text) {
  if (target.textContent !== text) {
    target.textContent = text;
  }
}

/** Set an attribute; null removes it. Does not touch the page if it is so already. */
export function setAttribute(target, name, value) {
  if (value === null) {
    target.removeAttribute(name);
  } else if (target.getAttribute(name) !== String(value)) {
    target.setAttribute(name, String(value));
  }
}

/** The element of the page with this id, which must be there. */
export function part(id) {
  const found = document.getElementById(id);
  if (found === null) {
    throw new Error(`the page has no element #${id}`);
  }
  return found;
}
