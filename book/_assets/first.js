// Runs before anything else in the head of every page.
(() => {
  // A reader who blocks storage would otherwise lose the search and the theme switch: keep things for as long as the page lives.
  for (const name of ["localStorage", "sessionStorage"]) {
    try {
      window[name].getItem("mode");
    } catch {
      const held = new Map();
      const stand_in = {
        getItem: (key) => held.get(String(key)) ?? null,
        setItem: (key, value) => void held.set(String(key), String(value)),
        removeItem: (key) => void held.delete(String(key)),
        clear: () => held.clear(),
      };
      Object.defineProperty(window, name, { value: stand_in });
    }
  }
  // The page says "light" for those without JavaScript; with it, the system's choice counts until the reader makes one.
  if (!localStorage.getItem("mode")) localStorage.setItem("mode", "auto");
  if (localStorage.getItem("mode") === "auto") {
    localStorage.setItem("theme", matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  }
})();
