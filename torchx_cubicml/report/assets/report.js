// Behaviour of the report: the tables of trials, the button that copies a command, and the labels of points.
// Every text of a store is set as text, never as markup.
"use strict";
(() => {
  const PAGE = 50; // rows of a page
  const PRINTED = 500; // rows on paper
  const whole = new Intl.NumberFormat("en-US", {maximumFractionDigits: 0});
  const precise = new Intl.NumberFormat("en-US", {maximumSignificantDigits: 3, useGrouping: false});
  const shown = value => value === null ? "" : typeof value !== "number" ? value
    : Number.isInteger(value) || Math.abs(value) >= 100 ? whole.format(value) : precise.format(value);

  function make(tag, attributes = {}, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (value !== null) node.setAttribute(name, value);
    }
    node.append(...children);
    return node;
  }

  function lines(text) { // a long text may end its lines behind commas
    return text.length < 20 ? [text] : text.split(/(?<=,)/).slice(0, 200).flatMap(part => [part, make("wbr")]);
  }

  function reader(column, columns) { // the forms of report/table_columns.py
    if ("same" in column) return reader(columns[column.same], columns);
    if ("all" in column) return () => column.all;
    if ("first" in column) return row => column.first + row;
    if ("rest" in column && !column.values) {
      let before = [];
      column.values = column.rest.map((text, row) => { // the letters are counted by code point
        before = [...before.slice(0, column.shared[row]), ...text];
        return before.join("");
      });
    }
    if ("index" in column) return row => column.levels[column.index[row]];
    return row => column.values[row];
  }

  class Trials {
    constructor(place) {
      const data = JSON.parse(document.getElementById(place.dataset.source).textContent);
      this.place = place;
      this.columns = data.columns.map(column => ({...column, at: reader(column, data.columns)}));
      this.table = this.columns.filter(column => column.shown);
      this.choice = this.columns.find(column => column.choice);
      this.all = Array.from({length: data.rows}, (_, row) => row);
      this.rows = this.all;
      this.page = 0;
      this.size = PAGE;
      this.sorted = null;
      this.open = new Set();
      this.texts = new Map(); // row -> its cells in lower case, made when they are first searched
      this.build();
      this.draw();
    }

    build() {
      this.search = make("input", {type: "search", placeholder: "Filter trials", "aria-label": "Filter trials by text"});
      this.search.addEventListener("input", () => this.filter());
      this.count = make("span", {class: "count", role: "status"});
      const controls = make("div", {class: "controls"}, this.search);
      if (this.choice) {
        const levels = [...new Set(this.all.map(row => this.choice.at(row)))].sort();
        this.select = make("select", {"aria-label": `Filter trials by ${this.choice.name}`},
          make("option", {value: ""}, `every ${this.choice.name}`),
          ...levels.map((level, place) => make("option", {value: String(place + 1)}, level)));
        this.levels = levels;
        this.select.addEventListener("change", () => this.filter());
        if (levels.length > 1) controls.append(this.select);
      }
      controls.append(this.count);
      this.heads = this.table.map(column => {
        const button = make("button", {type: "button"}, column.name);
        const head = make("th", {scope: "col", class: column.number ? "number" : null}, button);
        button.addEventListener("click", () => this.sort(column, head));
        return head;
      });
      this.body = make("tbody");
      const table = make("table", {}, make("thead", {}, make("tr", {}, ...this.heads)), this.body);
      this.before = make("button", {type: "button"}, "Previous");
      this.after = make("button", {type: "button"}, "Next");
      this.where = make("span", {class: "count"});
      this.before.addEventListener("click", () => this.turn(-1));
      this.after.addEventListener("click", () => this.turn(1));
      this.pages = make("div", {class: "pages"}, this.before, this.after, this.where);
      const scroll = make("div", {class: "scroll", role: "group", "aria-label": "Table of trials"}, table);
      this.place.append(controls, scroll, this.pages);
    }

    text(row) {
      if (!this.texts.has(row)) {
        this.texts.set(row, this.table.map(column => shown(column.at(row))).join("\n").toLowerCase());
      }
      return this.texts.get(row);
    }

    filter() {
      const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
      const level = this.select && this.select.value ? this.levels[Number(this.select.value) - 1] : null;
      this.rows = this.all.filter(row => (level === null || this.choice.at(row) === level)
        && words.every(word => this.text(row).includes(word)));
      this.order();
      this.page = 0;
      this.draw();
    }

    sort(column, head) {
      const falls = head.getAttribute("aria-sort") === (column.number ? "descending" : "ascending");
      const next = column.number === falls ? "ascending" : "descending";
      this.heads.forEach(each => each.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", next);
      this.sorted = {column, sign: next === "ascending" ? 1 : -1};
      this.order();
      this.page = 0;
      this.draw();
    }

    order() { // rows without a value stand last
      if (!this.sorted) return;
      const {column, sign} = this.sorted;
      const compare = column.number ? (a, b) => a - b : new Intl.Collator("en", {numeric: true}).compare;
      this.rows = [...this.rows].sort((first, second) => {
        const a = column.at(first), b = column.at(second);
        if (a === null || b === null) return (a === null) - (b === null) || first - second;
        return sign * compare(a, b) || first - second;
      });
    }

    turn(step) {
      this.page += step;
      this.draw();
    }

    draw() {
      const total = this.rows.length, first = this.page * this.size;
      const last = Math.min(first + this.size, total);
      this.body.replaceChildren(...this.rows.slice(first, last).flatMap(row => this.row(row)));
      const all = this.all.length;
      const trials = all === 1 ? "trial" : "trials";
      this.count.textContent = `${total === all ? "" : `${whole.format(total)} of `}${whole.format(all)} ${trials}`;
      this.where.textContent = total ? `${whole.format(first + 1)} to ${whole.format(last)}` : "";
      this.pages.hidden = total <= this.size;
      this.before.disabled = this.page === 0;
      this.after.disabled = last >= total;
    }

    row(row) {
      const name = `${this.place.id}-row-${row}`;
      const isOpen = this.open.has(row);
      const cells = this.table.map((column, place) => {
        const text = shown(column.at(row));
        if (place) return make("td", {class: column.number ? "number" : "text"}, make("span", {title: text.length > 60 ? text : null}, ...lines(text)));
        const button = make("button", {type: "button", class: "open", "aria-expanded": String(isOpen), "aria-controls": name,
          "aria-label": `Trial ${text}, all that was recorded`}, text);
        button.addEventListener("click", () => this.toggle(row, button, name));
        return make("td", {}, button);
      });
      const failed = this.choice && this.choice.at(row) !== "completed";
      const drawn = make("tr", {class: failed ? "failed" : null}, ...cells);
      return isOpen ? [drawn, this.details(row, name)] : [drawn];
    }

    toggle(row, button, name) {
      const opens = !this.open.has(row);
      button.setAttribute("aria-expanded", String(opens));
      if (opens) {
        this.open.add(row);
        button.closest("tr").after(this.details(row, name));
      } else {
        this.open.delete(row);
        document.getElementById(name).remove();
      }
    }

    details(row, name) {
      const facts = this.columns.map(column => [column.name, shown(column.at(row))]).filter(([, text]) => text !== "");
      const list = make("dl", {}, ...facts.flatMap(([label, text]) => [make("dt", {}, label), make("dd", {}, text)]));
      return make("tr", {class: "details", id: name}, make("td", {colspan: String(this.table.length)}, list));
    }

    print(starts) {
      this.size = starts ? PRINTED : PAGE;
      this.page = 0;
      this.draw();
    }
  }

  const tables = [...document.querySelectorAll(".trials")].map(place => new Trials(place));
  addEventListener("beforeprint", () => tables.forEach(table => table.print(true)));
  addEventListener("afterprint", () => tables.forEach(table => table.print(false)));

  for (const chooser of document.querySelectorAll(".chooser")) { // one of the further configs of a workload
    const box = chooser.querySelector("select");
    const parts = chooser.closest("section").querySelectorAll("[data-choice]");
    const rows = chooser.closest("section").querySelectorAll(".breakdown tbody tr");
    const show = () => {
      parts.forEach(part => { part.hidden = part.dataset.choice !== box.value; });
      rows.forEach(row => { // a part that none of the shown configs has
        row.hidden = [...row.cells].slice(1).every(cell => cell.hidden || cell.textContent === "-");
      });
    };
    box.addEventListener("change", show);
    chooser.hidden = false;
    show();
  }

  for (const button of document.querySelectorAll(".copy")) {
    const code = button.parentElement.querySelector("code");
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(code.textContent);
        button.textContent = "Copied";
      } catch { // a page opened from a file may not be allowed to
        getSelection().selectAllChildren(code);
        button.textContent = document.execCommand("copy") ? "Copied" : "Selected";
      }
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
  }

  // A long chapter gets links to its sections; that of the section in view is marked.
  for (const chapter of document.querySelectorAll("main > section")) {
    const heads = [...chapter.querySelectorAll("h3")].filter(head => !head.closest(".pair"));
    if (heads.length < 3) continue;
    const links = heads.map((head, place) => {
      head.id = head.id || `${chapter.id}-section-${place + 1}`;
      return make("a", {href: `#${head.id}`}, head.textContent);
    });
    const top = make("a", {href: `#${chapter.id}`}, "Result");
    const list = make("ul", {}, ...[top, ...links].map(link => make("li", {}, link)));
    const bar = make("nav", {class: "sections", "aria-label": `Sections of ${chapter.id.replace("-", " ")}`}, list);
    (chapter.querySelector(".facts-line") || chapter.querySelector("h2")).after(bar);
    const mark = () => {
      const at = heads.findLastIndex(head => head.getBoundingClientRect().top < innerHeight / 3);
      const now = at < 0 ? top : links[at];
      if (now.hasAttribute("aria-current")) return;
      [top, ...links].forEach(link => link.removeAttribute("aria-current"));
      now.setAttribute("aria-current", "true");
      bar.scrollLeft = now.offsetLeft - bar.clientWidth / 3;
    };
    addEventListener("scroll", () => requestAnimationFrame(mark), {passive: true});
    mark();
  }

  // What is wider than its place can be scrolled by keyboard too, and a line below says that there is more.
  const watch = new ResizeObserver(entries => entries.forEach(({target}) => {
    const more = target.scrollWidth > target.clientWidth + 1;
    if (more) target.setAttribute("tabindex", "0");
    else target.removeAttribute("tabindex");
    const next = target.nextElementSibling;
    const hint = next && next.classList.contains("more") ? next : null;
    if (more && !hint) target.after(make("p", {class: "more", "aria-hidden": "true"}, "Scroll sideways for the rest"));
    else if (!more && hint) hint.remove();
  }));
  document.querySelectorAll(".figure, .scroll").forEach(each => watch.observe(each));

  const tip = make("div", {class: "tip", "aria-hidden": "true", hidden: ""});
  document.body.append(tip);
  document.addEventListener("pointermove", event => {
    const point = event.target.closest ? event.target.closest(".figure [data-label]") : null;
    tip.hidden = !point;
    if (!point) return;
    tip.textContent = point.dataset.label.split("; ").join("\n");
    const box = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(8, Math.min(event.clientX + 12, innerWidth - box.width - 8))}px`;
    tip.style.top = `${event.clientY + 16 + box.height > innerHeight ? event.clientY - box.height - 8 : event.clientY + 16}px`;
  });
})();
