// Search, filters and order of the tables made by book/_ext/atlas/sortable.py. What is chosen lives in the address after #,
// so it can be shared; an address without "=" there is an ordinary anchor.
document.addEventListener("DOMContentLoaded", () => {
  document.querySelectorAll("form.mh-filter").forEach(start);

  function start(form) {
    const table = document.getElementById(form.dataset.for);
    const body = table.tBodies[0];
    const rows = [...body.rows];
    const output = form.querySelector("output");
    const fields = [...form.querySelectorAll("input, select")];
    const heads = [...table.tHead.rows[0].cells];
    const words = rows.map((row) => plain(row.textContent));
    let sort = "", descending = false;

    heads.forEach((head, column) => {
      if (!head.dataset.sort) return;
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        descending = sort === String(column) && !descending;
        sort = String(column);
        show();
        remember();
      });
    });

    function show() {
      form.dispatchEvent(new Event("mh-before"));
      const wanted = plain(form.elements.words.value).split(/\s+/).filter(Boolean);
      const chosen = fields.filter((field) => field.name !== "words" && field.value && !("setting" in field.dataset));
      let shown = 0;
      rows.forEach((row, number) => {
        const fits = wanted.every((word) => words[number].includes(word))
          && chosen.every((field) => row.dataset[field.name] === field.value);
        row.hidden = !fits;
        shown += fits;
      });
      output.textContent = (shown === rows.length ? "" : shown + " of ") + rows.length + " " + output.dataset.things;
      const ordered = sort === "" ? rows : [...rows].sort(compare(Number(sort)));
      if (sort !== "" && descending) ordered.reverse();
      body.append(...ordered);
      heads.forEach((head, column) => {
        if (String(column) === sort) head.setAttribute("aria-sort", descending ? "descending" : "ascending");
        else head.removeAttribute("aria-sort");
      });
      form.dispatchEvent(new Event("mh-after"));
    }

    function compare(column) {
      const key = (row) => row.cells[column].dataset.key ?? row.cells[column].textContent.trim();
      return heads[column].dataset.sort === "number"
        ? (a, b) => Number(key(a)) - Number(key(b))
        : (a, b) => key(a).localeCompare(key(b));
    }

    function remember() {
      const state = new URLSearchParams(fields.filter((field) => field.value).map((field) => [field.name, field.value]));
      if (sort !== "") state.set("sort", (descending ? "-" : "") + sort);
      history.replaceState(null, "", "#" + state);
    }

    // What the address does not say, or says wrongly, is as at the start; an anchor outside of the table changes nothing.
    function recall() {
      const hash = location.hash.slice(1);
      if (hash && !hash.includes("=") && !table.contains(document.getElementById(hash))) return show();
      const state = new URLSearchParams(hash.includes("=") ? hash : "");
      fields.forEach((field) => {
        field.value = state.get(field.name) || "";
        if (field.selectedIndex < 0) field.selectedIndex = 0;
      });
      const [, minus, column] = /^(-?)(\d+)$/.exec(state.get("sort")) ?? ["", "", ""];
      descending = minus === "-";
      sort = heads[column]?.dataset.sort ? column : "";
      show();
      if (hash && !hash.includes("=")) document.getElementById(hash)?.scrollIntoView();
    }

    form.addEventListener("input", () => { show(); remember(); });
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("reset", () => setTimeout(() => { sort = ""; show(); remember(); }));
    window.addEventListener("hashchange", recall);
    form.hidden = false;
    if (location.hash.includes("=")) recall();
    else show();
  }

  // Without accents and case, so that "poincare" finds Poincaré.
  function plain(text) {
    return text.normalize("NFD").replace(/[\u0300-\u036f]/g, "").toLowerCase().replaceAll("ł", "l");
  }
});
