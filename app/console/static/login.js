// A link that `dev` prints carries the token behind the #, which no browser sends anywhere.
const token = location.hash.slice(1);
if (token) {
  history.replaceState(null, "", location.pathname + location.search);
  const form = document.querySelector("form.sign-in");
  form.elements.token.value = decodeURIComponent(token);
  form.requestSubmit();
}
