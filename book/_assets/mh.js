// Opened from a folder, a page may not fetch others: the search then lists titles without excerpts.
if (location.protocol === "file:") DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;

// Names for controls that the theme leaves without one, and a role that a bibliography must not have.
document.addEventListener("DOMContentLoaded", () => {
  document.querySelectorAll(".bd-links summary").forEach((summary) => {
    const link = summary.closest("li").querySelector("a");
    summary.setAttribute("aria-label", "Sections of " + link.textContent.trim());
  });
  document.querySelectorAll(".citation-list[role=list]").forEach((list) => list.removeAttribute("role"));
});

// A full stop stays with the formula before it.
document.addEventListener("DOMContentLoaded", () => {
  document.querySelectorAll("span.math").forEach((formula) => {
    const next = formula.nextSibling;
    const mark = next?.nodeType === Node.TEXT_NODE && /^[.,;:!?)]+/.exec(next.data);
    if (!mark) return;
    const kept = document.createElement("span");
    kept.style.whiteSpace = "nowrap";
    formula.before(kept);
    kept.append(formula, mark[0]);
    next.data = next.data.slice(mark[0].length);
  });
});

// What holds more than it shows can be reached by keyboard, and mh.css hints at the rest. Formulas join once they are drawn.
document.addEventListener("DOMContentLoaded", () => {
  const made = new Set();
  const watch = new ResizeObserver((entries) => entries.forEach(({ target }) => {
    const scrolls = target.scrollWidth > target.clientWidth + 1;
    target.classList.toggle("mh-scrolls", scrolls);
    if (scrolls && target.tabIndex < 0) {
      target.tabIndex = 0;
      made.add(target);
    } else if (!scrolls && made.delete(target)) target.tabIndex = -1;
  }));
  const all = (selector) => document.querySelectorAll(selector).forEach((box) => watch.observe(box));
  all("main pre, .mhlib-figure, .mhlib-recorded");
  window.MathJax?.startup?.promise.then(() => {
    all("main mjx-container[display=true]");
    const widths = () => document.querySelectorAll("main span.math").forEach((formula) => {
      const room = formula.closest("p, li, td, dd, div").clientWidth;
      formula.classList.toggle("mh-wide", formula.firstElementChild?.getBoundingClientRect().width > room);
    });
    widths();
    addEventListener("resize", widths);
  });
});

// Paper is white.
let printed = "";
addEventListener("beforeprint", () => {
  printed = document.documentElement.dataset.theme;
  document.documentElement.dataset.theme = "light";
});
addEventListener("afterprint", () => { document.documentElement.dataset.theme = printed; });
