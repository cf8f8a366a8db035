/* Offers the other versions of the site. ../versions.js, beside the folders of the versions, says which there are:
   docs/versions.py writes it. Without that file, or with one version alone, nothing is shown. */
(() => {
  const root = new URL(document.documentElement.dataset.content_root, location.href);
  const offer = () => {
    const versions = Object.entries(window.VERSIONS);
    const current = root.pathname.split("/").at(-2);
    if (versions.length < 2) return;
    const page = location.href.split(/[?#]/)[0].slice(root.href.length) || "index.html";
    const select = document.createElement("select");
    for (const [version, pages] of versions) {
      const address = new URL(`../${version}/${pages.includes(page) ? page : "index.html"}`, root);
      select.add(new Option(version, address.href, false, version === current));
    }
    select.addEventListener("change", () => location.assign(select.value));
    const label = document.createElement("label");
    label.append("Version ", select);
    label.className = "versions";
    document.querySelector(".sidebar-search-container").before(label);
  };
  const list = document.createElement("script");
  list.src = new URL("../versions.js", root);
  list.addEventListener("load", () =>
    document.readyState === "loading" ? addEventListener("DOMContentLoaded", offer) : offer()
  );
  document.head.append(list);
})();
