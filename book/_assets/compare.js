// Puts the numbers of another size into a table of book/_ext/atlas/compare_page.py, and draws them. Loaded before tables.js,
// which tells the form when it is about to show rows and when it has.
document.addEventListener("DOMContentLoaded", () => {
  document.querySelectorAll("script.mh-counts").forEach((script) => {
    const counts = JSON.parse(script.textContent);
    const form = document.querySelector(`form[data-for="${script.dataset.for}"]`);
    const table = document.getElementById(script.dataset.for);
    const chart = document.createElement("div");
    chart.className = "mh-chart";
    chart.setAttribute("role", "img");
    form.after(chart);
    document.querySelector(".mh-shown").remove();
    const chosen = (name) => Number(form.elements[name].value || 0);

    form.addEventListener("mh-before", () => {
      for (const row of table.tBodies[0].rows) {
        const options = row.querySelector(".mh-options");
        if (options) options.textContent = counts[row.id].options[chosen("size")];
        counts[row.id].numbers[chosen("size")][chosen("context")].forEach((number, measure) => {
          const cell = row.cells[measure + 1];
          cell.textContent = si(number);
          cell.dataset.key = number;
        });
      }
    });

    form.addEventListener("mh-after", () => {
      const column = chosen("measure") + 1;
      const bars = [...table.tBodies[0].rows].filter((row) => !row.hidden)
        .map((row) => [row.querySelector("code").textContent, Number(row.cells[column].dataset.key), row.cells[column].textContent])
        .sort((a, b) => a[1] - b[1]);
      draw(chart, table.tHead.rows[0].cells[column].textContent.trim(), bars);
    });
  });

  // Bars as those of book/_ext/atlas/charts.py.
  function draw(chart, title, bars) {
    const most = Math.max(...bars.map((bar) => bar[1])) || 1;
    chart.setAttribute("aria-label", `${title}, from 0: ` + bars.map((bar) => `${bar[0]} ${bar[2]}`).join("; "));
    chart.replaceChildren(make("mh-axis", title + ", from 0"), ...bars.map(([name, number, text]) => {
      const row = make("mh-bars"), track = make("mh-track"), bar = make("mh-bar");
      bar.style.setProperty("--share", number / most);
      track.append(bar, make("mh-said", text));
      row.append(make("mh-name", name), track);
      return row;
    }));
  }

  function make(name, text = "") {
    const element = document.createElement("span");
    element.className = name;
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
