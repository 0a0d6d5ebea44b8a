//! `GET /` and `GET /ui`: the live page.
//!
//! One file, the same for everyone, compiled in; all figures reach it through `GET /ui/data`. The
//! invariant: the page asks nobody but this server for anything, and its policy lets a browser run
//! no other script and style than the page's own, named by their hashes.

use crate::http::response::Response;

const PAGE: &str = include_str!("../ui/page.html");

/// The hashes are those of what stands between the page's `<style>` and `<script>` tags; a test says
/// what they should be after a change. Styles set by the script need no permission.
const POLICY: &str = "default-src 'none'; connect-src 'self'; img-src data:; \
    script-src 'sha256-Iu0n30U6k9PNBNP/mmtIqbA++n7PGNvuOBiTIG4mc9Q='; \
    style-src 'sha256-FlYmmYPH96JXAOQfcZNSmOHtavTpR0WGnFTXqUBkMPk='; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The page.
pub(crate) fn page() -> Response {
    Response {
        status: 200,
        content_type: "text/html; charset=utf-8".into(),
        body: PAGE.as_bytes().to_vec(),
        headers: Vec::new(),
    }
    .header("content-security-policy", POLICY)
    .header("x-content-type-options", "nosniff")
    .header("referrer-policy", "no-referrer")
    // A newer server's page would otherwise come from the browser's memory of an older one.
    .header("cache-control", "no-cache")
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    use super::*;

    fn between<'a>(text: &'a str, before: &str, after: &str) -> &'a str {
        let (_, rest) = text.split_once(before).unwrap();
        rest.split_once(after).unwrap().0
    }

    fn base64(bytes: &[u8]) -> String {
        const DIGITS: &[u8; 64] =
            b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let mut text = String::new();
        for three in bytes.chunks(3) {
            let bits = three.iter().fold(0, |bits, &byte| bits << 8 | u32::from(byte))
                << (8 * (3 - three.len()));
            for place in 0..4 {
                let digit = DIGITS[(bits >> (18 - 6 * place) & 63) as usize];
                text.push(if place > three.len() { '=' } else { char::from(digit) });
            }
        }
        text
    }

    #[test]
    fn the_page_is_html_under_a_strict_policy() {
        let page = page();
        assert_eq!(page.status, 200);
        assert_eq!(page.content_type, "text/html; charset=utf-8");
        let header = |name| {
            page.headers.iter().find(|header| header.0 == name).map(|header| header.1.as_str())
        };
        let policy = header("content-security-policy").unwrap();
        assert!(policy.starts_with("default-src 'none';"), "{policy}");
        for weak in ["unsafe", "*", "http", "wasm", "strict-dynamic"] {
            assert!(!policy.contains(weak), "{policy} has {weak}");
        }
        assert_eq!(header("x-content-type-options"), Some("nosniff"));
    }

    #[test]
    fn the_policy_names_the_script_and_the_style_of_the_page() {
        for (source, before, after) in
            [("script-src", "<script>", "</script>"), ("style-src", "<style>", "</style>")]
        {
            let hash = base64(&Sha256::digest(between(PAGE, before, after)));
            let wanted = format!("{source} 'sha256-{hash}';");
            assert!(POLICY.contains(&wanted), "the policy should have: {wanted}");
        }
    }

    #[test]
    fn the_page_needs_nobody_else_and_never_makes_markup_of_text() {
        for bad in ["http:", "https:", "\"//", "url(", "@import", "import(", "XMLHttpRequest"] {
            assert!(!PAGE.contains(bad), "the page has {bad}");
        }
        for bad in
            ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "onclick="]
        {
            assert!(!PAGE.contains(bad), "the page has {bad}");
        }
        assert_eq!(PAGE.matches("<script>").count(), 1);
        assert_eq!(PAGE.matches("style=").count(), 0);
    }
}
