// Puts the numbers of another size into a table of book/_ext/atlas/compare_page.py, and draws them. Loaded before tables.js,
// which tells the form when it is about to show rows and when it has.
document.addEventListener("DOMContentLoaded", () => {
  document.querySelectorAll("script.mh-counts").forEach((script) => {
    const counts = JSON.parse(script.textContent);
    const form = document.querySelector(`form[data-for="${script.dataset.for}"]`);
    const table = document.getElementById(script.dataset.for);
    const chart = document.createElement("div");
    chart.className = "mh-table";
    chart.tabIndex = 0;
    chart.setAttribute("role", "group");
    chart.setAttribute("aria-label", "Chart");
    form.after(chart);
    document.querySelector(".mh-shown").remove();
    const chosen = (name) => Number(form.elements[name].value || 0);

    form.addEventListener("mh-before", () => {
      for (const row of table.tBodies[0].rows) {
        counts[row.id][chosen("size")][chosen("context")].forEach((number, measure) => {
          const cell = row.cells[measure + 1];
          cell.textContent = si(number);
          cell.dataset.key = number;
        });
      }
    });

    form.addEventListener("mh-after", () => {
      const column = chosen("measure") + 1;
      const bars = [...table.tBodies[0].rows].filter((row) => !row.hidden)
        .map((row) => [row.id.replaceAll("_", " "), Number(row.cells[column].dataset.key), row.cells[column].textContent])
        .sort((a, b) => a[1] - b[1]);
      chart.replaceChildren(draw(table.tHead.rows[0].cells[column].textContent.trim(), bars));
    });
  });

  function draw(title, bars) {
    const width = 680, left = 220, room = width - left - 70, step = 20;
    const most = Math.max(...bars.map((bar) => bar[1])) || 1;
    const svg = make("svg", { class: "mh-chart", viewBox: `0 0 ${width} ${bars.length * step + 30}`, width, role: "img" });
    svg.setAttribute("aria-label", `${title}, from 0: ` + bars.map((bar) => `${bar[0]} ${bar[2]}`).join("; "));
    bars.forEach(([name, number, text], index) => {
      const top = index * step + 4, length = number / most * room;
      svg.append(make("text", { x: left - 8, y: top + 12, "text-anchor": "end" }, name),
        make("rect", { class: "mh-bar", x: left, y: top, width: length, height: step - 5 }),
        make("text", { x: left + length + 5, y: top + 12 }, text));
    });
    const bottom = bars.length * step + 4;
    svg.append(make("path", { d: `M${left} 0V${bottom}`, stroke: "currentColor" }), make("text", { x: left, y: bottom + 16 }, title + ", from 0"));
    return svg;
  }

  function make(name, attributes, text = "") {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    Object.entries(attributes).forEach(([key, value]) => element.setAttribute(key, value));
    element.textContent = text;
    return element;
  }

  function si(number) {
    if (number < 1000 && Number.isInteger(number)) return String(number);
    for (const [power, prefix] of [[15, "P"], [12, "T"], [9, "G"], [6, "M"], [3, "k"]]) {
      if (number >= 0.9995 * 10 ** power) return three(number / 10 ** power) + " " + prefix;
    }
    return three(number);
  }

  function three(number) {
    return number.toFixed(number < 9.995 ? 2 : number < 99.95 ? 1 : 0);
  }
});
