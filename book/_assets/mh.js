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
