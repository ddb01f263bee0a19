/** How many lines are made at a time: a scene may have thousands of segments, and a browser lays all lines out. */
const LEGEND_LINES = 200;

/** The categories of a colouring: name, colour, share; each can be switched on and off. */
class Legend {
  #categories = [];
  #listed = []; // numbers of the categories whose names hold what is searched for
  #shown = 0; // how many of these have a line
  #total = 1;
  #hidden = new Set();

  /** @param {() => void} changed is called when categories were switched. */
  constructor(changed) {
    this.root = document.getElementById("legend");
    this.list = document.getElementById("categories");
    this.more = document.getElementById("more");
    this.summary = document.getElementById("summary");
    this.search = document.getElementById("search");
    this.changed = changed;
    this.search.addEventListener("input", () => this.#filter());
    this.more.addEventListener("click", () => this.#extend());
    document.getElementById("all").addEventListener("click", () => this.#switch(this.#listed, true));
    document.getElementById("none").addEventListener("click", () => this.#switch(this.#listed, false));
    this.list.addEventListener("change", ({ target }) => this.#switch([numberOf(target)], target.checked));
    this.list.addEventListener("click", ({ target }) => {
      if (target.classList.contains("only")) this.#showOnly(numberOf(target));
    });
  }

  /** Show a colouring; `hidden` has the numbers of its categories that are off, and is kept up to date. */
  show(coloring, hidden) {
    this.#hidden = hidden;
    this.#categories = coloring.categories;
    this.#total = coloring.categories.reduce((sum, category) => sum + category.count, 0);
    this.root.hidden = coloring.categories.length === 0;
    this.search.value = "";
    this.#filter();
  }

  #switch(numbers, isOn) {
    for (const number of numbers) {
      if (isOn) this.#hidden.delete(number);
      else this.#hidden.add(number);
    }
    for (const box of this.list.querySelectorAll("input")) box.checked = !this.#hidden.has(numberOf(box));
    this.#summarize();
    this.changed();
  }

  #showOnly(number) {
    for (const other of this.#categories.keys()) this.#hidden.add(other);
    this.#switch([number], true);
  }

  #filter() {
    const words = this.search.value.trim().toLowerCase();
    this.#listed = [...this.#categories.keys()].filter((number) => this.#categories[number].name.toLowerCase().includes(words));
    this.#shown = 0;
    this.list.replaceChildren();
    this.#extend();
    this.#summarize();
  }

  /** Make the lines of the next categories that are listed. */
  #extend() {
    const next = this.#listed.slice(this.#shown, this.#shown + LEGEND_LINES);
    const rows = next.map((number) => makeRow(this.#categories[number], number, this.#total, !this.#hidden.has(number)));
    this.list.append(...rows);
    this.#shown += rows.length;
    this.more.hidden = this.#shown === this.#listed.length;
    this.more.textContent = `${countOf(this.#listed.length - this.#shown, "more", "more")}: show the next, or search by name`;
  }

  #summarize() {
    const listed = this.#listed.length, all = this.#categories.length;
    const parts = [listed === all ? `${listed} listed` : `${listed} of ${all} listed`];
    if (this.#hidden.size) parts.push(`${this.#hidden.size} hidden`);
    this.summary.textContent = parts.join(", ");
  }
}

/** The number of the category whose line an element is in. */
function numberOf(element) {
  return Number(element.closest("li").dataset.number);
}

/** A line of the legend. Names come from files: they are set as text, never as markup. */
function makeRow(category, number, total, isOn) {
  const make = (name, className, text) => {
    const element = document.createElement(name);
    element.className = className;
    element.textContent = text;
    return element;
  };
  const item = make("li", "", ""), label = make("label", "", "");
  const box = make("input", "", ""), swatch = make("span", "swatch", "");
  const only = make("button", "only", "only");
  item.dataset.number = number;
  box.type = "checkbox";
  box.checked = isOn;
  only.type = "button";
  only.setAttribute("aria-label", `Show only ${category.name}`);
  swatch.style.background = category.color;
  label.title = `${category.name}: ${countOf(category.count, "vertex", "vertices")}`;
  label.append(box, swatch, make("span", "name", category.name), make("span", "share", formatShare(category.count / total)));
  item.append(label, only);
  return item;
}

function countOf(number, one, many) {
  const digits = String(number).replace(/\B(?=(\d{3})+$)/g, ","); // toLocaleString takes a tenth of a second at first
  return `${digits} ${number === 1 ? one : many}`;
}

function formatShare(share) {
  if (share > 0 && share < 0.001) return "< 0.1 %";
  return `${(100 * share).toFixed(1)} %`;
}
